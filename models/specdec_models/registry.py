"""Architecture name -> model definition, and the export of one program to a Relax IRModule."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.relax.frontend import nn

from .arch.llama import Llama, Sampling
from .config import MAX_ROWS, OUT_ROWS, TOP_FIELDS, ProgramShape, RuntimeConfig
from .layers import op

ARCHITECTURES: dict[str, Callable[[RuntimeConfig, ProgramShape], nn.Module]] = {"llama": Llama}


def build_program(config: RuntimeConfig, shape: ProgramShape) -> tvm.IRModule:
    """The program as abstract ops: one function "forward" whose parameters carry the module's parameter names."""
    return _export(ARCHITECTURES[config.architecture](config, shape))


class Score(nn.Module):
    """Teacher forcing over logits a verify program left behind."""

    def __init__(self, config: RuntimeConfig, width: int):
        self.config, self.width = config, width
        self.args = nn.Parameter((4,), "int32")
        self.logits = nn.Parameter((8, config.padded_vocab), "float32")
        self.score_ids = nn.Parameter((8,), "int32")

    def forward(self):
        c = self.config
        inputs = [self.args, self.logits, self.score_ids]
        return op("score", inputs, [((8, 3), "float32")], m=self.width, n=c.vocab_size, padded=c.padded_vocab)


def build_score(config: RuntimeConfig, width: int) -> tvm.IRModule:
    """The score program of one width."""
    return _export(Score(config, width))


class Logprobs(nn.Module):
    """Log-probabilities of the ids that a pass of the target chose, over the logits it left behind."""

    def __init__(self, config: RuntimeConfig, width: int):
        self.config, self.width = config, width
        self.args = nn.Parameter((4,), "int32")
        self.logits = nn.Parameter((8, config.padded_vocab), "float32")
        self.out = nn.Parameter((OUT_ROWS, 2), "int32")

    def forward(self):
        c = self.config
        shape = [((OUT_ROWS, TOP_FIELDS), "float32")]
        inputs = [self.args, self.logits, self.out]
        return op("logprobs", inputs, shape, m=self.width, n=c.vocab_size, padded=c.padded_vocab)


def build_logprobs(config: RuntimeConfig, width: int) -> tvm.IRModule:
    """The program of log-probabilities of one width."""
    return _export(Logprobs(config, width))


class Accept(nn.Module):
    """Between two rounds of one submit: how far the target agreed, and where both models go on."""

    def __init__(self, config: RuntimeConfig):
        self.config = config
        self.target_args = nn.Parameter((4,), "int32")
        self.target_out = nn.Parameter((OUT_ROWS, 2), "int32")
        self.tokens = nn.Parameter((config.num_tokens,), "int32")
        self.draft_args = nn.Parameter((4,), "int32")

    def forward(self):
        c = self.config
        inputs = [self.target_args, self.target_out, self.tokens, self.draft_args]
        return op("accept", inputs, [((1,), "int32")], n=c.vocab_size, tokens=c.num_tokens)


def build_accept(config: RuntimeConfig) -> tvm.IRModule:
    """The program between two rounds."""
    return _export(Accept(config))


VERDICT = ((8, 4), "int32")  # a row a round of a submit


class Judge(nn.Module):
    """After a verify pass: which drafts stand, and the draw after them, by the rules of `reject` and `block`."""

    def __init__(self, config: RuntimeConfig, filtered: bool):
        c = self.config = config
        self.filtered = filtered  # by the verify pass, which left z
        self.target_args = nn.Parameter((4,), "int32")
        if filtered:
            self.target_z = nn.Parameter((MAX_ROWS, c.padded_vocab), "float32")
        else:
            self.target_logits = nn.Parameter((MAX_ROWS, c.padded_vocab), "float32")
        self.target_out = nn.Parameter((OUT_ROWS, 2), "int32")
        self.tokens = nn.Parameter((c.num_tokens,), "int32")
        self.draft_q = nn.Parameter((MAX_ROWS, c.padded_vocab), "float32")
        self.sampling = Sampling(c)

    def forward(self):
        """Returns (z, verdict, done), without z where it was there."""
        c, args, s = self.config, self.target_args, self.sampling
        sizes = {"columns": c.padded_vocab, "vocab": c.vocab_size, "tokens": c.num_tokens}
        rows = [((MAX_ROWS, c.padded_vocab), "float32")]
        if self.filtered:
            z = self.target_z
        else:
            z = op("judge_weigh", [args, self.target_logits, s.ints, s.floats, s.bias], rows, **sizes)
        stats = op(
            "judge_stats", [args, self.tokens, z, self.draft_q], [((2 * MAX_ROWS, 4), "float32")], **sizes
        )
        mass = op("judge_mass", [args, z, self.draft_q, stats, s.ints], [((MAX_ROWS,), "float32")], **sizes)
        inputs = [args, z, self.draft_q, stats, mass, s.ints, self.target_out]
        verdict = op("judge_verdict", inputs, [VERDICT], **sizes)
        done = op("judge_ids", [args, self.tokens, verdict, self.target_out], [((1,), "int32")], **sizes)
        return (verdict, done) if self.filtered else (z, verdict, done)


class Follow(nn.Module):
    """Between two rounds of one submit, where a verdict says how far the target agreed."""

    def __init__(self, config: RuntimeConfig):
        self.config = config
        self.target_args = nn.Parameter((4,), "int32")
        self.target_verdict = nn.Parameter(*VERDICT)
        self.tokens = nn.Parameter((config.num_tokens,), "int32")
        self.draft_args = nn.Parameter((4,), "int32")

    def forward(self):
        c = self.config
        inputs = [self.target_args, self.target_verdict, self.tokens, self.draft_args]
        return op("follow", inputs, [((1,), "int32")], n=c.vocab_size, tokens=c.num_tokens)


def build_judge(config: RuntimeConfig, filtered: bool = False) -> tvm.IRModule:
    """The program that judges drafts that were drawn."""
    return _export(Judge(config, filtered))


def build_follow(config: RuntimeConfig) -> tvm.IRModule:
    """The program between two rounds, after a verdict."""
    return _export(Follow(config))


def _export(module: nn.Module) -> tvm.IRModule:
    exported, params = module.export_tvm({"forward": {}})[:2]
    function = exported["forward"]
    # parameter names such as "layers.0.qkv.w" are kept in an attribute: relax variables cannot carry dots
    order = ",".join(name for name, _ in params)
    exported["forward"] = function.with_attr("specdec.params", order)
    return exported
