"""One token per row: its distribution, one uniform number, its log-probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.functional.filtering import check_sampling_settings, filter_probabilities
from rlcore.functional.logprobs import token_logprobs
from rlcore.sampling.settings import is_number, is_whole


@dataclass(frozen=True)
class SamplingParams:
    """How responses are sampled.

    Raises:
        ConfigError: a value is no number, not whole where it counts tokens, or out of range.
    """

    max_new_tokens: int
    """Longest response, in tokens; at least 1."""
    temperature: float = 1.0
    """The logits are divided by it; 0 takes the most likely token."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0 is off."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that reaches this probability; 1 is off."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k"):
            if not is_whole(getattr(self, name)):
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected a whole number. Give a number of tokens.")
        for name in ("temperature", "top_p"):
            if not is_number(getattr(self, name)):
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected a number. Leave it out for 1.")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens}: expected at least 1.")
        check_sampling_settings(self.temperature, self.top_k, self.top_p)


def uniform_streams(seeds: Sequence[int], count: int) -> Tensor:
    """Float32 [B, count] in [0, 1): row b is the beginning of the Philox stream (Salmon et al. 2011) of seeds[b]."""
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(count, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Tokens [B] and their log-probabilities [B] in nats, from logits [B, V] and one uniform number [B] each.

    The log-probability is of the whole distribution at the temperature, not of what top-k and top-p left of it, because
    that is what policy and reference are compared with. At temperature 0 it is of the distribution at temperature 1.
    """
    probabilities = filter_probabilities(logits, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    tokens = draw(probabilities, uniforms)
    return tokens, token_logprobs(logits, tokens, params.temperature or 1.0)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [B] by inversion of the distribution function: the first whose cumulated probability exceeds u * total.

    One random number per row instead of one per vocabulary entry. No token of probability 0 is drawn, not even where u
    is 0 or rounding lifts u * total to the total. A row of NaN gives some valid id.

    Args:
        probabilities: float [B, V], at least 0 each; the sum of a row need not be exactly 1.
        uniforms: float32 [B] in [0, 1).
    """
    cumulated = probabilities.cumsum(dim=-1)
    total = cumulated[:, -1:].contiguous()
    tokens = torch.searchsorted(cumulated, uniforms[:, None] * total, right=True)
    last_possible = torch.searchsorted(cumulated, total)
    return torch.minimum(tokens, last_possible).squeeze(-1).clamp(max=probabilities.shape[-1] - 1)
