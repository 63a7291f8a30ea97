"""Llama (Touvron et al. 2023) as SmolLM2 uses it: RMSNorm, rotary grouped-query attention, SwiGLU, optionally a tied head."""

from __future__ import annotations

from tvm.relax.frontend import nn

from ..config import BANNED, MAX_ROWS, OUT_ROWS, SAMPLING_FLOATS, SAMPLING_INTS, ProgramShape, RuntimeConfig
from ..layers import Fused, Matrix, RMSNorm, add, op, quantize, rows


class State(nn.Module):
    """Everything of a model that the host or other programs see."""

    def __init__(self, c: RuntimeConfig):
        self.args = nn.Parameter((4,), "int32")
        self.tokens = nn.Parameter((c.num_tokens,), "int32")
        self.page_table = nn.Parameter((c.num_pages,), "int32")
        self.rope = nn.Parameter((c.max_context, c.head_dim), "float32")


class Sampling(nn.Module):
    """What the host says of how a token is chosen; both models read it."""

    def __init__(self, c: RuntimeConfig):
        self.ints = nn.Parameter((SAMPLING_INTS,), "int32")
        self.floats = nn.Parameter((SAMPLING_FLOATS,), "float32")
        self.bias = nn.Parameter((c.padded_vocab,), "float32")


class Filter(Sampling):
    """What the filtered passes of the target read besides."""

    def __init__(self, c: RuntimeConfig):
        super().__init__(c)
        self.mask = nn.Parameter((OUT_ROWS, -(-c.padded_vocab // 32)), "uint32")
        self.banned = nn.Parameter(BANNED, "int32")


class Pages(nn.Module):
    """K and V pages of one layer."""

    def __init__(self, c: RuntimeConfig):
        self.k = nn.Parameter((c.num_pages, c.num_kv_heads, c.head_dim, c.page_size), "float32")
        self.v = nn.Parameter((c.num_pages, c.num_kv_heads, c.page_size, c.head_dim), "float32")


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, c: RuntimeConfig, index: int):
        prefix, formats = f"layers.{index}.", c.formats.by_name
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self.c = c
        self.attn_norm = RMSNorm(c.hidden, c.norm_eps)
        self.qkv = Fused({"q": q, "k": kv, "v": kv}, "qkv", c.hidden, prefix, c)
        self.o = Matrix(c.hidden, q, formats[prefix + "o"])
        self.mlp_norm = RMSNorm(c.hidden, c.norm_eps)
        self.gate_up = Fused({"gate": c.ffn, "up": c.ffn}, "gate_up", c.hidden, prefix, c)
        self.down = Matrix(c.hidden, c.ffn, formats[prefix + "down"])
        self.pages = Pages(c)

    def forward(self, state: State, x: nn.Tensor) -> nn.Tensor:
        args = state.args
        x = add(args, x, self.o(args, *quantize(args, self.attention(state, x))))
        codes, scales = self.mlp_norm(args, x)  # type: ignore[misc]
        gate_up = self.gate_up(args, codes, scales)
        m = rows(x)
        hidden = op("silu_mul", [args, gate_up], [((m, self.c.ffn), "float32")], m=m, k=self.c.ffn)
        return add(args, x, self.down(args, *quantize(args, hidden)))

    def append(self, state: State, x: nn.Tensor) -> nn.Tensor:
        """Rotary q [M, heads * D] f32; appends K and V."""
        qkv = self.qkv(state.args, *self.attn_norm(state.args, x))  # type: ignore[misc]
        return self._over_pages("rope_append", state, [state.args, qkv, state.rope], rows(x))

    def attention(self, state: State, x: nn.Tensor) -> nn.Tensor:
        """Attention output [M, heads * D] f32, before the output projection; appends K and V."""
        return self._over_pages("attention", state, [state.args, self.append(state, x)], rows(x))

    def _over_pages(self, name: str, state: State, inputs: list[nn.Tensor], m: int) -> nn.Tensor:
        c = self.c
        shape = {"m": m, "h": c.num_heads, "kv": c.num_kv_heads, "d": c.head_dim, "s": c.page_size}
        shape |= {"ctx": c.max_context, "pages": c.num_pages}
        pages = [state.page_table, self.pages.k, self.pages.v]
        return op(name, [*inputs, *pages], [((m, c.num_heads * c.head_dim), "float32")], **shape)


class Llama(nn.Module):
    """A whole program: `width` rows of the token history, from args.start on."""

    def __init__(self, c: RuntimeConfig, shape: ProgramShape):
        self.c, self.shape = c, shape
        self.state = State(c)
        self.embed = Matrix(c.padded_vocab, c.hidden, c.formats.by_name["embed"])
        self.layers = nn.ModuleList([Layer(c, i) for i in range(c.num_layers)])
        if shape.head:
            self.norm = RMSNorm(c.hidden, c.norm_eps)
            if not c.tied_embedding:
                self.head = Matrix(c.logits[1], c.hidden, c.formats.by_name["head"])
            if c.head_ids:
                self.vocabulary = nn.Parameter((c.head_ids,), "int32")
        if shape.choice != "argmax":
            self.sampling = Filter(c) if shape.choice == "filter" else Sampling(c)
        if shape.choice == "draw":
            self.target_args = nn.Parameter((4,), "int32")

    def forward(self):
        """Programs with a head return (logits, out, advanced), measured ones their statistics before the last, those with a filter what
        it left before `out`. A prefill ends where
        the last layer's K and V are appended; its result, that layer's q, is unused."""
        c, state, m = self.c, self.state, self.shape.width
        table = [state.args, state.tokens, self.embed.w, self.embed.ws]
        sizes = {"m": m, "k": c.hidden, "n": c.padded_vocab, "fmt": self.embed.fmt, "tokens": c.num_tokens}
        x = op("embed", table, [((m, c.hidden), "float32")], **sizes)
        layers: list[Layer] = list(self.layers)  # type: ignore[arg-type]
        *layers, last = layers
        for layer in layers:
            x = layer(state, x)
        if not self.shape.head:
            return last.append(state, x)
        x = last(state, x)
        head = self.embed if c.tied_embedding else self.head
        logits = head(state.args, *self.norm(state.args, x))
        over = {"m": m, "n": c.logits[0], "padded": c.logits[1]}
        if self.shape.choice == "draw":
            return logits, *self._draw(logits, over)
        kept = [self._filter(logits, over)] if self.shape.choice == "filter" else []
        results = [self._choose(kept[0] if kept else logits, over)]
        if self.shape.measured:
            results.append(op("measure", [state.args, logits], [((OUT_ROWS, 2), "float32")], **over))
        done = op("advance", [state.args, state.tokens, results[0]], [((1,), "int32")], tokens=c.num_tokens)
        return logits, *kept, *results, done

    def _draw(self, logits: nn.Tensor, over: dict[str, int]) -> tuple[nn.Tensor, ...]:
        """The last row's z, kept in `draft.q`, and the id that is drawn from it: (q, out, advanced)."""
        c, state, sampling = self.c, self.state, self.sampling
        sizes = {"columns": c.padded_vocab, "vocab": c.vocab_size}
        inputs = [state.args, self.target_args, logits, sampling.ints, sampling.floats, sampling.bias]
        names = [self.vocabulary] if c.head_ids else []
        name = "keep_q" + ("_named" if names else "")
        q = op(name, [*inputs, *names], [((MAX_ROWS, c.padded_vocab), "float32")], **over, **sizes)
        inputs = [state.args, self.target_args, q, sampling.ints, state.tokens]
        out, done = op(
            "draw_q", inputs, [((OUT_ROWS, 2), "int32"), ((1,), "int32")], tokens=c.num_tokens, **sizes
        )
        return q, out, done

    def _filter(self, logits: nn.Tensor, over: dict[str, int]) -> nn.Tensor:
        """The processed logits [M, padded]; the target only."""
        state, sampling = self.state, self.sampling
        assert isinstance(sampling, Filter) and not self.c.head_ids
        shape, sizes = [((over["m"], over["padded"]), "float32")], over | {"tokens": self.c.num_tokens}
        common = [sampling.ints, sampling.floats]
        inputs = [state.args, state.tokens, logits, *common, sampling.bias, sampling.mask]
        z = op("process", inputs, shape, **sizes)
        return op("truncate", [state.args, state.tokens, *common, sampling.banned, z], shape, **sizes)

    def _choose(self, logits: nn.Tensor, over: dict[str, int]) -> nn.Tensor:
        """The rows of `out`; logits: what a filter left of them, where there is one."""
        c, choice, inputs = self.c, self.shape.choice, [self.state.args, logits]
        if choice == "filter":
            return op("pick", [*inputs, self.sampling.ints], [((OUT_ROWS, 2), "int32")], **over)
        if choice == "sample":
            inputs += [self.sampling.ints, self.sampling.floats, self.sampling.bias]
            over = over | {"bias": c.padded_vocab}
        names = [self.vocabulary] if c.head_ids else []
        name = choice + ("_named" if names else "")
        return op(name, [*inputs, *names], [((OUT_ROWS, 2), "int32")], **over)
