"""A slow, obvious NumPy twin of every kernel, on the kernels' own flat layouts. Knows neither TVM nor devices.

A twin takes (params, arguments by name, levels) and returns what the kernel should leave in each written argument. Results that
belong to rows come as the valid rows only (a prefix of the flat buffer, as nothing is promised of the rows past num_rows); shared
state (pages, tokens, args, out, score) comes whole, with the places that must stay as they were. Floats are float64; quantized codes
come unrounded, as the quotients x / scale, so that a check sees how near a tie was. `levels` is 32767 where activation codes are int16
(CPU) and 127 where they are int8, four to a word (GPU). What is not the same kernels
on both devices has one twin: attend (attention, then quantize; in two kernels on the GPU), choose (argmax, then advance),
choose_measured (argmax, statistics of the row, advance), choose_sampled (the noisy argmax, advance), filtered (every processor) and
choose_filtered (filtered, the noisy argmax, advance). The GPU's layouts of activations and pages (one buffer each) are taken apart by
`readable`, so that twins know one layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from specdec_runtime.decode.rng import NOISE

from .base import GROUP, MAX_ROWS, OUT_ROWS, Params, weight_rows
from .filter_twin import filtered, logprobs, picked
from .judge_twins import draw, follow, judge
from .noise_twin import gumbel
from .quantize import GROUP_WORDS

Arrays = Mapping[str, np.ndarray]
Twin = Callable[[Params, Arrays, int], dict[str, np.ndarray]]

BYTE_K = (0, 4, 1, 5, 2, 6, 3, 7)  # the k, of eight, that each byte of two consecutive words holds
NIBBLE_K = (0, 2, 4, 6, 1, 3, 5, 7)  # the k, of eight, that each nibble of a 4-bit word holds


def _rows(a: Arrays) -> range:
    return range(int(a["args"][1]))


def _ints(p: Params, *keys: str) -> tuple[int, ...]:
    return tuple(int(p[key]) for key in keys)


# --- layouts -----------------------------------------------------------------------------------------------------------


def weight_codes(w: np.ndarray, n: int, k: int, fmt: str) -> np.ndarray:
    """uint32 [N/4, 4 or 8, K/32, 4 rows] -> int64 codes [N, K]."""
    words = w.view(np.uint32).reshape(-1, 4 if fmt == "q4" else 8, k // GROUP, 4).astype(np.int64)
    codes = np.zeros((4 * len(words), k), np.int64)
    for eight in range(k // 8):
        group, c = divmod(eight, 4)
        for i in range(8):
            if fmt == "q4":
                codes[:, 8 * eight + NIBBLE_K[i]] = words[:, c, group].ravel() >> (4 * i) & 15
            else:
                byte = words[:, 2 * c + i // 4, group].ravel() >> (8 * (i % 4)) & 255
                codes[:, 8 * eight + BYTE_K[i]] = byte - 256 * (byte > 127)
    return codes[:n]


def group_parameters(ws: np.ndarray, n: int, k: int, fmt: str) -> tuple[np.ndarray, np.ndarray]:
    """f32 [N/4, 2 or 1, K/32, 4 rows] -> float64 scale and minimum, [N, K/32] each."""
    parts = ws.astype(np.float64).reshape(-1, 2 if fmt == "q4" else 1, k // GROUP, 4)
    by_row = parts.transpose(1, 0, 3, 2).reshape(parts.shape[1], -1, k // GROUP)[:, :n]
    return by_row[0], by_row[1] if fmt == "q4" else np.zeros_like(by_row[0])


def activation_codes(xq: np.ndarray, k: int, levels: int) -> np.ndarray:
    """int16 [M, K] in natural order, or int32 words of four int8 in the order of BYTE_K -> int64 [M, K]."""
    if levels > 127:
        return xq.view(np.int16).reshape(-1, k).astype(np.int64)
    packed = xq.view(np.int8).reshape(-1, 8)
    codes = np.zeros(packed.shape, np.int64)
    for byte, of_eight in enumerate(BYTE_K):
        codes[:, of_eight] = packed[:, byte]
    return codes.reshape(-1, k)


def pack_activations(codes: np.ndarray, levels: int) -> np.ndarray:
    """The inverse of activation_codes, flat."""
    if levels > 127:
        return codes.astype(np.int16).ravel()
    return codes.astype(np.int8).reshape(-1, 8)[:, list(BYTE_K)].reshape(-1).view(np.int32)


def pack_groups(xq: np.ndarray, xs: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """The GPU's one buffer of quantized activations, flat: a group is eight words of codes, then two scales, sum and squares; a row
    holds the first four words of every group, then the second, then the third. squares is [rows, K/32]."""
    words = np.zeros((squares.size, GROUP_WORDS), np.uint32)
    words[:, :8] = xq.view(np.uint32).reshape(-1, 8)
    words[:, 8:11] = xs.astype(np.float32).reshape(-1, 3).view(np.uint32)
    words[:, 11] = squares.astype(np.float32).ravel().view(np.uint32)
    return words.reshape(*squares.shape, 3, 4).transpose(0, 2, 1, 3).ravel()


def split_groups(codes: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """The inverse: xq (int32 words), xs and squares, each flat."""
    by_group = codes.view(np.uint32).reshape(rows, 3, -1, 4).transpose(0, 2, 1, 3)
    words = np.ascontiguousarray(by_group).reshape(-1, GROUP_WORDS)
    floats = words.view(np.float32)
    xq = np.ascontiguousarray(words[:, :8]).view(np.int32).ravel()
    return {"xq": xq, "xs": floats[:, 8:11].ravel(), "squares": floats[:, 11].ravel()}


def pack_pages(p: Params, k_pages: np.ndarray, v_pages: np.ndarray) -> np.ndarray:
    """The GPU's one buffer of a layer's pages, flat: words of two f16, [page, kv_head, D/2, slot] of K, then [.., slot, D/2] of V."""
    d, s = _ints(p, "d", "s")
    with np.errstate(over="ignore"):
        k = k_pages.astype(np.float16).reshape(-1, d // 2, 2, s).transpose(0, 1, 3, 2)
        v = v_pages.astype(np.float16)
    return np.concatenate([np.ascontiguousarray(k).ravel(), v.ravel()]).view(np.uint32)


def split_pages(p: Params, pages: np.ndarray) -> dict[str, np.ndarray]:
    """The inverse: k_pages and v_pages in f32, as on the CPU."""
    d, s = _ints(p, "d", "s")
    k, v = np.split(pages.view(np.float16).astype(np.float32), 2)
    return {"k_pages": k.reshape(-1, d // 2, s, 2).transpose(0, 1, 3, 2).ravel(), "v_pages": v}


def readable(p: Params, a: Arrays) -> dict[str, np.ndarray]:
    """The arguments with the GPU's own layouts taken apart, beside what they are."""
    found = dict(a)
    packed = next(
        (a[name] for name in ("codes", "next_codes") if name in a), None
    )  # what goes in, else what came out
    if packed is not None:
        found |= split_groups(packed, int(p["m"]))
    if "pages" in a:
        found |= split_pages(p, a["pages"])
    return found


def page_index(p: Params, a: Arrays, position: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices, [D] each, of one position's K (pages [page, kv_head, D, slot]) and V ([page, kv_head, slot, D])."""
    kv, d, s = _ints(p, "kv", "d", "s")
    block = (int(a["page_table"][position // s]) * kv + head) * d * s
    return block + np.arange(d) * s + position % s, block + position % s * d + np.arange(d)


# --- twins -------------------------------------------------------------------------------------------------------------


def embed(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """Of a shard of rows: ids outside it leave x as it was."""
    n, k = _ints(p, "n", "k")
    first, rows = int(p.get("first_row", 0)), weight_rows(p)
    codes = weight_codes(a["w"], rows, k, str(p["fmt"]))
    scale, minimum = group_parameters(a["ws"], rows, k, str(p["fmt"]))
    table = codes * scale.repeat(GROUP, 1) + minimum.repeat(GROUP, 1)
    x = a["x"].reshape(-1, k).astype(np.float64)[: len(_rows(a))]
    for row in _rows(a):
        at = min(max(int(a["tokens"][int(a["args"][0]) + row]), 0), n - 1) - first
        if 0 <= at < rows:
            x[row] = table[at]
    return {"x": x}


def _quantized(values: np.ndarray, levels: int, squared: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """values [rows, K] -> xq: quotients [rows, K]; xs [rows, K/32, 2]: scale, scale * sum of rounded codes. Not finite: xs only.
    On the GPU half groups have scales: xs [rows, K/32, 3]: both scales, the sum of both halves.

    With `squared` [rows, K], what the GPU squares for the next norm, also squares [rows, K/32]."""
    halves = 1 if levels > 127 else 2
    groups = values.reshape(len(values), -1, GROUP // halves)
    scale = np.abs(groups).max(axis=2) / levels
    divisor = np.where((scale > 0) & np.isfinite(scale), scale, np.inf)[:, :, None]
    quotients = np.where(np.isfinite(groups), groups, 0) / divisor
    sums = np.where(np.isfinite(scale), scale, 0) * np.rint(quotients).sum(axis=2)
    by_group = (len(values), -1, halves)
    sums = sums.reshape(by_group).sum(axis=2, keepdims=True)
    xs = np.concatenate([scale.reshape(by_group), sums], axis=2)
    result = {"xq": quotients.reshape(values.shape), "xs": xs}
    if squared is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            result["squares"] = (squared * squared).reshape(len(values), -1, GROUP).sum(axis=2)
    return result


def quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    x = a["x"].astype(np.float64).reshape(-1, int(p["k"]))[: len(_rows(a))]
    return _quantized(x, levels)


def norm_quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    x = a["x"].astype(np.float64).reshape(-1, int(p["k"]))[: len(_rows(a))]
    inverse = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + float(p["eps"]))
    with np.errstate(invalid="ignore"):  # infinity times zero is the NaN wanted
        return _quantized(x * inverse * a["weight"].astype(np.float64), levels)


def scale_quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    x = a["x"].astype(np.float64).reshape(-1, int(p["k"]))[: len(_rows(a))]
    with np.errstate(invalid="ignore"):
        return _quantized(x * a["weight"].astype(np.float64), levels, x)


def _silu_mul(gate_up: np.ndarray, levels: int) -> dict[str, np.ndarray]:
    """gate_up [rows, 2, K]."""
    gate, up = gate_up[:, 0], gate_up[:, 1]
    with np.errstate(over="ignore", invalid="ignore"):
        return _quantized(gate / (1 + np.exp(-gate)) * up, levels)


def silu_mul_quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    return _silu_mul(a["gate_up"].astype(np.float64).reshape(-1, 2, int(p["k"]))[: len(_rows(a))], levels)


def linear(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """With eps (the GPU's), times 1 / rms of the row whose squares the activations carry."""
    a = readable(p, a)
    n, k, fmt = int(p["n"]), int(p["k"]), str(p["fmt"])
    codes = weight_codes(a["w"], n, k, fmt).reshape(n, -1, GROUP)
    scale, minimum = group_parameters(a["ws"], n, k, fmt)
    x = activation_codes(a["xq"], k, levels).reshape(-1, k // GROUP, GROUP)
    halves = 1 if levels > 127 else 2
    xs = a["xs"].astype(np.float64).reshape(-1, k // GROUP, halves + 1)
    out = np.zeros((len(_rows(a)), n))
    for row in _rows(a):
        dots = (
            (codes * x[row]).reshape(n, -1, halves, GROUP // halves).sum(axis=3)
        )  # [N, K/32, halves], exact
        products = (dots * xs[row, :, :halves]).sum(axis=2)
        out[row] = (scale * products + minimum * xs[row, :, halves]).sum(axis=1)
        if "eps" in p:
            out[row] /= np.sqrt(
                a["squares"].astype(np.float64).reshape(-1, k // GROUP)[row].sum() / k + float(p["eps"])
            )
    return {"out": out}


def linear_rows(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """A shard's columns of out; the others stay."""
    found = linear({**p, "n": p["rows"]}, a, levels)["out"]
    out = a["out"].reshape(-1, int(p["n"])).astype(np.float64)[: len(found)]
    out[:, : found.shape[1]] = found
    return {"out": out}


def linear_add(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    out = linear(p, a, levels)["out"]
    return {"out": out + a["residual"].reshape(-1, int(p["n"]))[: len(out)]}


def linear_add_quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    out = linear_add(p, a, levels)["out"]
    return {"out": out, **_quantized(out * a["weight"].astype(np.float64), levels, out)}


def gate_up_quantize(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    out = linear(p, a, levels)["out"]
    return _silu_mul(out.reshape(len(out), 2, -1), levels)


def qkv_rope(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    out = linear(p, a, levels)["out"]
    qkv = np.zeros((int(p["m"]), out.shape[1]))
    qkv[: len(out)] = out
    return rope_append(p, {**a, "qkv": qkv}, levels)


def rope_append(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    a = readable(p, a)
    h, kv, d = _ints(p, "h", "kv", "d")
    qkv = a["qkv"].astype(np.float64).reshape(-1, h + 2 * kv, d)
    k_pages, v_pages = a["k_pages"].astype(np.float64), a["v_pages"].astype(np.float64)
    q = np.zeros((len(_rows(a)), h, d))
    for row in _rows(a):
        position = int(a["args"][0]) + row
        cos, sin = a["table"].astype(np.float64).reshape(-1, 2, d // 2)[position]
        for head in range(h + kv):
            first, second = qkv[row, head].reshape(2, d // 2)
            rotated = np.concatenate([first * cos - second * sin, second * cos + first * sin])
            if head < h:
                q[row, head] = rotated
            else:
                k_pages[page_index(p, a, position, head - h)[0]] = rotated
        for head in range(kv):
            v_pages[page_index(p, a, position, head)[1]] = qkv[row, h + kv + head]
    return {"q": q, "k_pages": k_pages, "v_pages": v_pages}


def attention(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    a = readable(p, a)
    h, kv, d = _ints(p, "h", "kv", "d")
    q = a["q"].astype(np.float64).reshape(-1, h, d)
    out = np.zeros((len(_rows(a)), h, d))
    for row in _rows(a):
        for head in range(h):
            places = [page_index(p, a, at, head // (h // kv)) for at in range(int(a["args"][0]) + row + 1)]
            keys = np.array([a["k_pages"][key] for key, _ in places], np.float64)
            values = np.array([a["v_pages"][value] for _, value in places], np.float64)
            scores = keys @ q[row, head] / np.sqrt(d)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values / weights.sum()
    return {"out": out}


def attend(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    out = attention(p, a, levels)["out"].reshape(len(_rows(a)), -1)
    return {"out": out, **_quantized(out, levels)}


def concat(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    sources = sorted(name for name in a if name[0] == "x")
    parts = [a[name].reshape(int(p["m"]), -1)[: len(_rows(a))] for name in sources]
    return {"out": np.concatenate(parts, axis=1).astype(np.float64)}


def _logits(p: Params, a: Arrays, row: int) -> np.ndarray:
    return a["logits"].astype(np.float64).reshape(int(p["m"]), -1)[row, : int(p["n"])]


def argmax(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """A row that is not all finite gets (-1, 0): its id may be any below n."""
    out, first = a["out"].reshape(OUT_ROWS, 2).astype(np.int64), int(a["args"][3])
    for row in _rows(a):
        logits = _logits(p, a, row)
        best = int(np.flatnonzero(logits == logits.max())[0]) if np.isfinite(logits).all() else -1
        named = int(a["ids"][best]) if "ids" in a and best >= 0 else best
        out[first + row] = named, best >= 0
    return {"out": out}


def advance(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    args, tokens = a["args"].astype(np.int64), a["tokens"].astype(np.int64)
    start, rows, feedback, first = (int(x) for x in args)
    if feedback == 1:
        tokens[start + rows] = a["out"].reshape(OUT_ROWS, 2)[first + rows - 1, 0]
        args[:] = start + rows, 1, feedback, first + rows
    return {"args": args, "tokens": tokens, "done": np.array([1])}


def choose(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    chosen = argmax(p, a, levels)
    return chosen | advance(p, {**a, **chosen}, levels)


def choose_sampled(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """The largest of (logit + bias) / T + noise; a row of which the bias leaves nothing is as one that is not finite."""
    out, first = a["out"].reshape(OUT_ROWS, 2).astype(np.int64), int(a["args"][3])
    ids = a["ids"] if "ids" in a else np.arange(int(p["n"]))
    flags, scale = int(a["ints"][6]), float(a["floats"][0])
    for row in _rows(a):
        logits = _logits(p, a, row)
        raw = logits + (a["bias"][ids].astype(np.float64) if flags & 2 else 0)
        noise = gumbel(a["ints"], int(a["args"][0]) + row + 1, ids, NOISE) if flags & 1 else 0
        weighed = np.where(raw < -1e30, -np.inf, raw * scale + noise)
        chosen = np.isfinite(logits).all() and weighed.max() > -np.inf
        out[first + row] = (int(ids[np.argmax(weighed)]), 1) if chosen else (-1, 0)
    return {"out": out} | advance(p, {**a, "out": out}, levels)


def choose_filtered(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """All processors, the noisy argmax, advance."""
    out = picked(p, a, levels)
    return {"out": out} | advance(p, {**a, "out": out}, levels)


def choose_measured(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """Where a row is not all finite its statistics are any numbers: NaN here."""
    stats, first = a["stats"].astype(np.float64).reshape(OUT_ROWS, 2), int(a["args"][3])
    for row in _rows(a):
        logits = _logits(p, a, row)
        if not np.isfinite(logits).all():
            stats[first + row] = np.nan
            continue
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        seen = shares[shares > 0]
        stats[first + row] = np.log(shares.max()), -(seen * np.log(seen)).sum()
    return choose(p, a, levels) | {"stats": stats}


def score(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    result = a["score"].astype(np.float64).reshape(MAX_ROWS, 3)
    for row in _rows(a):
        logits = _logits(p, a, row)
        second, first = np.sort(logits)[-2:]
        given = logits[np.clip(a["score_ids"][row], 0, len(logits) - 1)]
        result[row] = first - second, given - first - np.log(np.exp(logits - first).sum()), first
    return {"score": result}


def accept(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """The leading rows that say what the tokens after them are; then the first other row's id, if it is one."""
    args, draft_args = a["args"].astype(np.int64), a["draft_args"].astype(np.int64)
    tokens, out = a["tokens"].astype(np.int64), a["out"].reshape(OUT_ROWS, 2)
    start, rows, _, first = (int(x) for x in args)
    if rows:
        said = [int(token) if finite == 1 else -1 for token, finite in out[first : first + rows]]
        count = 0
        while count < rows - 1 and said[count] == tokens[start + 1 + count]:
            count += 1
        if 0 <= said[count] < int(p["n"]):
            tokens[start + count + 1] = said[count]
            args[0], args[3] = start + count + 1, first + rows
            draft_args[:3] = start + count, 2, 1
        else:
            args[1], draft_args[1:3] = 0, 0
    return {"args": args, "tokens": tokens, "draft_args": draft_args, "done": np.array([1])}


TWINS: dict[str, Twin] = {
    "embed": embed,
    "embed_rows": embed,
    "norm_quantize": norm_quantize,
    "scale_quantize": scale_quantize,
    "linear": linear,
    "normed_linear": linear,
    "linear_rows": linear_rows,
    "linear_add": linear_add,
    "linear_add_quantize": linear_add_quantize,
    "gate_up_quantize": gate_up_quantize,
    "qkv_rope": qkv_rope,
    "rope_append": rope_append,
    "attention": attention,
    "attend": attend,
    "quantize": quantize,
    "silu_mul_quantize": silu_mul_quantize,
    "concat2": concat,
    "concat3": concat,
    "choose": choose,
    "choose_measured": choose_measured,
    "choose_named": choose,
    "choose_measured_named": choose_measured,
    "choose_sampled": choose_sampled,
    "choose_sampled_named": choose_sampled,
    "filtered": filtered,
    "choose_filtered": choose_filtered,
    "logprobs": logprobs,
    "score": score,
    "accept": accept,
    "follow": follow,
    "draw": draw,
    "draw_named": draw,
    "judge": judge,
}
