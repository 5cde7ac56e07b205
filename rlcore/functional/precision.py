"""The precision of results, and an exponential that stays finite."""

import math

import torch
from torch import Tensor

EXPONENT_LIMIT = 40.0  # exp(40) is 2e17: its square, and a gradient norm made of such numbers, still fit float32


def at_least_float32(x: Tensor) -> Tensor:
    """X itself where it is float32 or float64; half precisions and integers become float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def bounded_exp(x: Tensor) -> Tensor:
    """Elementwise exp(x) up to EXPONENT_LIMIT, its tangent above: no overflow, and the gradient keeps its direction."""
    return x.clamp(max=EXPONENT_LIMIT).exp() * (1.0 + (x - EXPONENT_LIMIT).clamp(min=0.0))


def bounded_expm1(x: Tensor) -> Tensor:
    """Elementwise bounded_exp(x) - 1, exact near 0 too."""
    return x.clamp(max=EXPONENT_LIMIT).expm1() + math.exp(EXPONENT_LIMIT) * (x - EXPONENT_LIMIT).clamp(min=0.0)
