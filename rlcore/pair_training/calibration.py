"""Whether a model that says "90 %" is right in nine of ten pairs."""

import torch
from torch import Tensor

from rlcore.functional.precision import at_least_float32

BINS = 10
"""Intervals of equal width into which confidences, 0.5 to 1, are sorted."""


def calibration_gaps(margins: Tensor) -> Tensor:
    """Confidence less correctness, summed over the pairs of each bin: float [10], in pairs.

    The confidence of a pair is sigmoid(|margin|), the probability, 0.5 to 1, of the response with the larger reward;
    bin b holds 0.5 + 0.05 b <= confidence < 0.55 + 0.05 b, the last one 1 too. A pair is correct (1) where its margin
    is above 0, and half correct on a tie, which decides nothing. Gaps of the parts of a batch add up to the batch's.

    Args:
        margins: float [N], reward of the chosen less that of the rejected response.
    """
    margins = at_least_float32(margins)
    confidence = margins.abs().sigmoid()
    correct = (margins.sign() + 1) / 2
    # Confidence 1 belongs to the last bin; NaN, which may become any index, spoils one.
    bins = ((confidence - 0.5) * 2 * BINS).long().clamp(0, BINS - 1)
    return torch.zeros(BINS, dtype=margins.dtype, device=margins.device).index_add(0, bins, confidence - correct)


def calibration_error(gaps: list[float], pair_count: int) -> float:
    """Expected calibration error, 0 to 0.5 for a model that is right more often than not (Guo et al. 2017, eq. 3).

    The sum over bins of (pairs of the bin / N) * |mean confidence - share of correct pairs|.

    Args:
        gaps: calibration_gaps of N pairs.
        pair_count: N, at least 1.
    """
    return sum(map(abs, gaps)) / pair_count
