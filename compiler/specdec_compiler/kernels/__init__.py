"""Every kernel the compiler knows, by op name. One op a file or a small family; the NumPy twins live in twins.py."""

from .accept import ACCEPT, FOLLOW
from .attention import ATTENTION
from .attention_gpu import ATTENTION_MERGE, ATTENTION_SPLIT
from .base import Op, Params, kernel_name
from .draw import DRAW_Q, KEEP_Q, KEEP_Q_NAMED
from .embed import CONCAT2, CONCAT3, EMBED
from .filter_ops import PROCESS, TRUNCATE
from .judge import JUDGE_IDS, JUDGE_MASS, JUDGE_STATS, JUDGE_VERDICT, JUDGE_WEIGH
from .linear import LINEAR, LINEAR_ADD
from .linear_gpu import GATE_UP_QUANTIZE, LINEAR_ADD_QUANTIZE, QKV_ROPE
from .logprobs import LOGPROBS, LOGPROBS_MERGE, LOGPROBS_SPLIT
from .measure import MEASURE, MEASURE_MERGE, MEASURE_SPLIT, MEASURE_SPLIT_NAMED
from .pick import PICK, PICK_SPLIT
from .quantize import NORM_QUANTIZE, QUANTIZE, SCALE_QUANTIZE, SILU_MUL_QUANTIZE
from .rope import ROPE_APPEND
from .sample import SAMPLE, SAMPLE_NAMED, SAMPLE_SPLIT, SAMPLE_SPLIT_NAMED
from .select import (
    ADVANCE,
    ARGMAX,
    ARGMAX_MERGE,
    ARGMAX_NAMED,
    ARGMAX_SPLIT,
    ARGMAX_SPLIT_NAMED,
    SAMPLE_MERGE,
    SCORE,
)

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        EMBED,
        NORM_QUANTIZE,
        SCALE_QUANTIZE,
        LINEAR,
        LINEAR_ADD,
        LINEAR_ADD_QUANTIZE,
        GATE_UP_QUANTIZE,
        QKV_ROPE,
        ROPE_APPEND,
        ATTENTION,
        ATTENTION_SPLIT,
        ATTENTION_MERGE,
        QUANTIZE,
        SILU_MUL_QUANTIZE,
        CONCAT2,
        CONCAT3,
        ARGMAX,
        ARGMAX_SPLIT,
        ARGMAX_MERGE,
        ARGMAX_NAMED,
        ARGMAX_SPLIT_NAMED,
        SAMPLE,
        SAMPLE_NAMED,
        SAMPLE_SPLIT,
        SAMPLE_SPLIT_NAMED,
        SAMPLE_MERGE,
        PROCESS,
        TRUNCATE,
        PICK,
        PICK_SPLIT,
        ADVANCE,
        MEASURE,
        MEASURE_SPLIT,
        MEASURE_SPLIT_NAMED,
        MEASURE_MERGE,
        SCORE,
        LOGPROBS,
        LOGPROBS_SPLIT,
        LOGPROBS_MERGE,
        ACCEPT,
        FOLLOW,
        KEEP_Q,
        KEEP_Q_NAMED,
        DRAW_Q,
        JUDGE_WEIGH,
        JUDGE_STATS,
        JUDGE_MASS,
        JUDGE_VERDICT,
        JUDGE_IDS,
    )
}

__all__ = ["OPS", "Op", "Params", "kernel_name"]
