"""Estimators of KL(policy || reference) from tokens that the policy sampled (Schulman 2020).

All take log-probabilities of the same tokens under both models, in nats, any shape, and return one number per token.
"""

from torch import Tensor

from rlcore.functional.masking import require_same_shape
from rlcore.functional.precision import at_least_float32, bounded_expm1


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """logprobs - ref_logprobs: unbiased and signed, so that one sample may be below 0.

    A running mean that stays below 0 says that the tokens were not sampled from the policy as it is scored: another
    temperature, a filter, or padding that is counted.

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(logprobs=logprobs, ref_logprobs=ref_logprobs)
    return at_least_float32(logprobs) - at_least_float32(ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half of the squared difference: biased, never below 0, small variance.

    Raises:
        DataError: the shapes differ.
    """
    return k1(logprobs, ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-k1) - 1 + k1: unbiased, never below 0.

    Where the reference is more than 40 nats above the policy the exponential goes on as its tangent, so that value and
    gradient stay finite.

    Raises:
        DataError: the shapes differ.
    """
    difference = k1(logprobs, ref_logprobs)
    return bounded_expm1(-difference) + difference


def sequence_kl(kl: Tensor, response_mask: Tensor) -> Tensor:
    """Sum of kl over each response, [B, T] to [B], in nats per response.

    Args:
        kl: float [B, T], nats per token.
        response_mask: bool [B, T].

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(kl=kl, response_mask=response_mask)
    return at_least_float32(kl).where(response_mask, 0.0).sum(dim=-1)
