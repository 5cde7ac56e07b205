"""The distribution that a response token is drawn from: temperature, then top-k, then top-p."""

import torch
from torch import Tensor

from rlcore.errors import ConfigError

NUCLEUS_START = 1024  # candidates sorted at first; a nucleus is rarely larger, and sorting a whole vocabulary is slow


def filter_probabilities(logits: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Sampling probabilities after temperature, top-k and nucleus filtering (Holtzman et al. 2020), in this order.

    The nucleus is the smallest set of most likely tokens whose probability reaches top_p, the crossing token included,
    and holds at least one. What is kept is renormalised, all else is exactly 0. Tokens at -inf never come back.

    Args:
        logits: float [..., V]. A row needs a finite maximum; without one its probabilities are NaN.
        temperature: at least 0; 0 puts all probability on the most likely token.
        top_k: at least 0; 0, or V and more, is off.
        top_p: 0 to 1; 1 is off, 0 keeps the most likely token.

    Returns:
        probabilities [..., V], float32 (float64 for float64 logits).

    Raises:
        ConfigError: a setting is out of range.
    """
    check_sampling_settings(temperature, top_k, top_p)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature == 0:
        most_likely = logits.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(logits).scatter(-1, most_likely, 1.0)
    # The difference to the maximum, and not the logit, is divided: a tiny temperature then overflows to -inf at most.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    vocab_size = logits.shape[-1]
    if 0 < top_k < vocab_size:
        candidates, token_ids = scaled.topk(top_k, dim=-1)
        kept = _nucleus(candidates.softmax(dim=-1), top_p)
    elif top_p < 1:
        probabilities, token_ids = _most_likely_until(scaled.softmax(dim=-1), top_p)
        kept = _nucleus(probabilities, top_p)
    else:
        return scaled.softmax(dim=-1)
    return torch.zeros_like(logits).scatter(-1, token_ids, kept / kept.sum(dim=-1, keepdim=True))


def check_sampling_settings(temperature: float, top_k: int, top_p: float) -> None:
    """Let settings pass that `filter_probabilities` takes.

    Raises:
        ConfigError: one is out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"temperature={temperature}: expected a finite number of at least 0. Use 0 for greedy decoding."
        )
    if top_k < 0:
        raise ConfigError(f"top_k={top_k}: expected at least 0. Use 0 to switch it off.")
    if not 0 <= top_p <= 1:
        raise ConfigError(f"top_p={top_p}: expected a share between 0 and 1. Use 1 to switch it off.")


def _most_likely_until(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities and ids [..., K] of the most likely tokens in falling order, enough that each row reaches top_p."""
    vocab_size = probabilities.shape[-1]
    count = min(NUCLEUS_START, vocab_size)
    while True:
        most_likely, token_ids = probabilities.topk(count, dim=-1)
        if count == vocab_size or bool((most_likely.cumsum(dim=-1)[..., -1] >= top_p).all()):
            return most_likely, token_ids
        count = min(8 * count, vocab_size)


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Probabilities [..., K] in falling order, with 0 for each token before which top_p was reached already."""
    if top_p == 1:
        return probabilities
    outside = torch.zeros_like(probabilities, dtype=torch.bool)
    outside[..., 1:] = probabilities.cumsum(dim=-1)[..., :-1] >= top_p
    return probabilities.masked_fill(outside, 0.0)
