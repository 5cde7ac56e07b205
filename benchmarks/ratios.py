"""Paired ratios of rounds: median, spread, and whether they reach what a row must."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SHARE_ABOVE_ONE = 5 / 7
"""Share of the rounds that have to be above 1, besides the median that has to reach the must."""


@dataclass(frozen=True)
class Spread:
    """Ratios peer / ours of the rounds that count; above 1 we are cheaper."""

    median: float
    least: float
    most: float
    above_one: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.least:.2f}, {self.most:.2f}]"


def spread_of(ratios: Sequence[float]) -> Spread:
    """Median, least and most of at least one ratio."""
    return Spread(statistics.median(ratios), min(ratios), max(ratios), sum(ratio > 1 for ratio in ratios), len(ratios))


def reaches(spread: Spread, must: float) -> bool:
    """Whether the median reaches what it must, and enough rounds are above 1 where the must is."""
    enough = spread.above_one >= SHARE_ABOVE_ONE * spread.rounds
    return spread.median >= must and (enough or must < 1)
