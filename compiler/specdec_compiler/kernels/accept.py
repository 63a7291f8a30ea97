"""Between two rounds of one submit: how many drafts the target agreed to, the token it says next, and where both models go on.

The rule is decode/verify.py's accept_greedy, over the rows of `out` that args names: integers only, no order of additions. The last two
tokens are the draft model's next rows: one of them it may have read before, and then writes the same K and V again. A judged row that
is not finite, or whose id is outside the vocabulary, sets both models' rows to 0: every later pass of the submit does nothing. The
host reaches the same verdict from `out`. `follow` does the same by the verdict of judge.py, in place of the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from specdec_runtime.plan.schema import VERDICT_FIELDS, VERDICT_ROWS
from tvm.script.ir_builder import tirx as T

from .base import ARGS, MAX_ROWS, OUT_ROWS, Form, Op, Params
from .ir import cpu_func, local, prim_func, store, threads, when
from .select import out_row

DECIDED = 1  # bit of a verdict's flags


def _accept(vocab: int, args, out, tokens, draft_args, done):
    store(done, 0, T.int32(1))
    with when(args[1] > 0):
        start, rows, first = T.bind(args[0]), T.bind(args[1]), T.bind(out_row(args, 0))
        agrees, accepted = local(1, "int32"), local(1, "int32")
        store(agrees, 0, T.int32(1))
        store(accepted, 0, T.int32(0))
        for i in range(MAX_ROWS - 1):  # no early end: the loads do not wait for each other
            at = T.bind((first + T.min(rows - 1, i)) * 2)
            same = T.And(out[at + 1] == 1, out[at] == tokens[start + 1 + i])
            store(agrees, 0, T.Select(T.And(rows - 1 > i, same), agrees[0], T.int32(0)))
            store(accepted, 0, accepted[0] + agrees[0])
        count = T.bind(accepted[0])
        at = T.bind((first + count) * 2)
        _go_on(vocab, args, tokens, draft_args, count, out[at], out[at + 1] == 1)


def _go_on(vocab: int, args, tokens, draft_args, count, said, decided) -> None:
    """`count` drafts stand and `said` follows, where `decided`: where both models go on, if at all."""
    start, rows, ok, token = T.bind(args[0]), T.bind(args[1]), local(1, "int32"), T.bind(said)
    inside = T.And(token >= 0, token < vocab)
    store(ok, 0, T.Select(T.And(decided, inside), T.int32(1), T.int32(0)))
    with when(ok[0] == 1):
        store(tokens, start + count + 1, token)
        store(args, 0, start + count + 1)
        store(args, 3, args[3] + rows)
        store(draft_args, 0, start + count)
        store(draft_args, 1, T.int32(2))
        store(draft_args, 2, T.int32(1))
    with when(ok[0] == 0):
        store(args, 1, T.int32(0))
        store(draft_args, 1, T.int32(0))
        store(draft_args, 2, T.int32(0))


def _follow(vocab: int, args, verdict, tokens, draft_args, done):
    store(done, 0, T.int32(1))
    with when(args[1] > 0):
        at = T.bind(verdict_row(args) * VERDICT_FIELDS)
        count = T.bind(T.max(T.min(verdict[at], args[1] - 1), 0))
        decided = T.bitwise_and(verdict[at + 2], DECIDED) != 0
        _go_on(vocab, args, tokens, draft_args, count, verdict[at + 1], decided)


def verdict_row(args):
    """The round of the submit that the target's args stand at: each has as many rows of `out` as the others."""
    return T.max(T.min(T.truncdiv(args[3], args[1]), VERDICT_ROWS - 1), 0)


def _params(said: tuple[str, int, str], p: Params) -> list[tuple[str, int, str]]:
    tokens, done = ("tokens", int(p["tokens"]), "int32"), ("done", 1, "int32")
    return [("args", ARGS, "int32"), said, tokens, ("draft_args", ARGS, "int32"), done]


OUT = ("out", OUT_ROWS * 2, "int32")
VERDICT = ("verdict", VERDICT_ROWS * VERDICT_FIELDS, "int32")


def _cpu(rule: Callable, said: tuple[str, int, str], name: str, p: Params):
    def body(share, *buffers):
        with share.whole():
            rule(int(p["n"]), *buffers)

    return cpu_func(name, _params(said, p), body)


def _gpu(rule: Callable, said: tuple[str, int, str], name: str, p: Params):
    def body(*buffers):
        with threads(1, 1, 1, 1):
            rule(int(p["n"]), *buffers)

    return prim_func(name, _params(said, p), body)


def _op(name: str, rule: Callable, said: tuple[str, int, str]) -> Op:
    state = (("tokens", "read_write"), ("draft_args", "read_write"))
    args = (("args", "read_write"), (said[0], "read"), *state, ("done", "write"))
    return Op(name, Form(args, partial(_cpu, rule, said)), Form(args, partial(_gpu, rule, said)))


ACCEPT, FOLLOW = _op("accept", _accept, OUT), _op("follow", _follow, VERDICT)
