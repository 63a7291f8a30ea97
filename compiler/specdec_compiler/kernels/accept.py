"""Between two rounds of one submit: how many drafts the target agreed to, the token it says next, and where both models go on.

The rule is decode/verify.py's accept_greedy, over the rows of `out` that args names: integers only, no order of additions. The last two
tokens are the draft model's next rows: one of them it may have read before, and then writes the same K and V again. A judged row that
is not finite, or whose id is outside the vocabulary, sets both models' rows to 0: every later pass of the submit does nothing. The
host reaches the same verdict from `out`.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .base import ARGS, MAX_ROWS, OUT_ROWS, Form, Op, Params
from .ir import cpu_func, local, prim_func, store, threads, when
from .select import out_row


def _accept(vocab: int, args, out, tokens, draft_args, done):
    store(done, 0, T.int32(1))
    with when(args[1] > 0):
        start, rows, first = T.bind(args[0]), T.bind(args[1]), T.bind(out_row(args, 0))
        agrees, accepted, ok = local(1, "int32"), local(1, "int32"), local(1, "int32")
        store(agrees, 0, T.int32(1))
        store(accepted, 0, T.int32(0))
        for i in range(MAX_ROWS - 1):  # no early end: the loads do not wait for each other
            at = T.bind((first + T.min(rows - 1, i)) * 2)
            same = T.And(out[at + 1] == 1, out[at] == tokens[start + 1 + i])
            store(agrees, 0, T.Select(T.And(rows - 1 > i, same), agrees[0], T.int32(0)))
            store(accepted, 0, accepted[0] + agrees[0])
        count = T.bind(accepted[0])
        at = T.bind((first + count) * 2)
        token = T.bind(out[at])
        inside = T.And(token >= 0, token < vocab)
        store(ok, 0, T.Select(T.And(out[at + 1] == 1, inside), T.int32(1), T.int32(0)))
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


def _params(p: Params) -> list[tuple[str, int, str]]:
    tokens = ("tokens", int(p["tokens"]), "int32")
    out, done = ("out", OUT_ROWS * 2, "int32"), ("done", 1, "int32")
    return [("args", ARGS, "int32"), out, tokens, ("draft_args", ARGS, "int32"), done]


def _accept_cpu(name: str, p: Params):
    def body(share, *buffers):
        with share.whole():
            _accept(int(p["n"]), *buffers)

    return cpu_func(name, _params(p), body)


def _accept_gpu(name: str, p: Params):
    def body(*buffers):
        with threads(1, 1, 1, 1):
            _accept(int(p["n"]), *buffers)

    return prim_func(name, _params(p), body)


_STATE = (("tokens", "read_write"), ("draft_args", "read_write"))
_ARGS = (("args", "read_write"), ("out", "read"), *_STATE, ("done", "write"))
ACCEPT = Op("accept", Form(_ARGS, _accept_cpu), Form(_ARGS, _accept_gpu))
