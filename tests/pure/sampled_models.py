"""A model of a table, sampled by definition: one number an id, from the request itself and no tensor. The suite's second opinion."""

from collections.abc import Callable
from math import inf

from specdec_runtime.backends.scripted_sampling import logits_of
from specdec_runtime.decode.rng import gumbel
from specdec_runtime.decode.sampling import Sampling

NextId = Callable[[tuple[int, ...]], int]


def sampled(model: NextId, sampling: Sampling, vocab: int) -> NextId:
    """The id after a prefix, of a request with none of the filters."""
    banned = {word[0] for word in sampling.bad_words}
    allowed = set(range(vocab) if sampling.allowed_ids is None else sampling.allowed_ids) - banned

    def weight(prefix: tuple[int, ...], token_id: int, logit: float) -> float:
        if token_id not in allowed:
            return -inf
        biased = logit + sampling.logit_bias.get(token_id, 0.0)
        if not sampling.temperature:
            return biased
        return biased / sampling.temperature + gumbel(sampling.seed, len(prefix), token_id)

    def next_id(prefix: tuple[int, ...]) -> int:
        logits = logits_of(model, prefix, vocab)
        weights = [weight(prefix, token_id, logit) for token_id, logit in enumerate(logits)]
        return weights.index(max(weights))

    return next_id
