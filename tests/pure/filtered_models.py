"""A model of a table behind every processor, by definition: settings from the request itself, the history from the prefix itself."""

from collections.abc import Callable, Sequence

from specdec_runtime.backends.scripted_sampling import logits_of
from specdec_runtime.decode.pipeline import Processors, process
from specdec_runtime.decode.rng import gumbel
from specdec_runtime.decode.sampling import Sampling

NextId = Callable[[tuple[int, ...]], int]


def filtered(model: NextId, sampling: Sampling, prompt_len: int, stops: Sequence[int], vocab: int) -> NextId:
    """The id after a prefix, of a request whose prompt has so many tokens and whose answer ends at one of these."""
    words = sampling.bad_words
    allowed = range(vocab) if sampling.allowed_ids is None else sampling.allowed_ids
    use = Processors(
        noise=sampling.temperature > 0,
        inverse_t=1 / sampling.temperature if sampling.temperature else 1.0,
        prompt_len=prompt_len,
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=[sampling.logit_bias.get(token_id, 0.0) for token_id in range(vocab)],
        mask=lambda token_id: token_id in allowed and [token_id] not in words,
        banned=[word for word in words if len(word) > 1],
        stops=stops,
        min_len=prompt_len + sampling.min_tokens,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )

    def next_id(prefix: tuple[int, ...]) -> int:
        z = process(logits_of(model, prefix, vocab), prefix, use)
        assert z is not None, f"nothing survives after {prefix}"
        if use.noise:
            z = [value + gumbel(sampling.seed, len(prefix), token_id) for token_id, value in enumerate(z)]
        return z.index(max(z))

    return next_id
