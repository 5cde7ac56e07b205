"""Histograms as shapes: where each bar and each label of an SVG picture stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 340, 120
"""Of a picture, in its own units; it scales with the page."""
_BASE = HEIGHT - 18
_TOP = 8
MOST_BARS = 48
_LABELS = 6


@dataclass(frozen=True)
class Bar:
    """One bin: a rectangle and what it says."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Histogram:
    """A picture of WIDTH × HEIGHT: the bars, the labels (x, text) below them, and what a screen reader says."""

    bars: tuple[Bar, ...]
    labels: tuple[tuple[float, str], ...]
    summary: str


def histogram(found: Mapping[str, Any], unit: str) -> Histogram | None:
    """The picture of a histogram; None where it counts nothing. Every bin is drawn as wide as the others.

    Args:
        found: `edges` of the bins, one more than `counts`.
        unit: of the edges.
    """
    edges, counts = _at_most(MOST_BARS, found.get("edges", []), found.get("counts", []))
    if not any(counts):
        return None
    step, total, most = WIDTH / len(counts), sum(counts), max(counts)
    bars = []
    for index, count in enumerate(counts):
        # What is there is seen, however little it is.
        height = max((_BASE - _TOP) * count / most, 1.0) if count else 0.0
        title = f"{_number(edges[index])} to {_number(edges[index + 1])} {unit}: {count:,} ({count / total:.1%})"
        bars.append(
            Bar(round(index * step, 2), round(_BASE - height, 2), round(max(step - 1, 1), 2), round(height, 2), title)
        )
    every = -(-len(edges) // _LABELS)
    labels = tuple((round(index * step, 2), _number(edges[index])) for index in range(0, len(edges), every))
    peak = counts.index(most)
    summary = f"{total:,} values; most often {_number(edges[peak])} to {_number(edges[peak + 1])} {unit}"
    return Histogram(tuple(bars), labels, summary)


def _at_most(bars: int, edges: Sequence[float], counts: Sequence[int]) -> tuple[list[float], list[int]]:
    """The histogram with neighbouring bins joined until there are few enough."""
    join = max(-(-len(counts) // bars), 1)
    starts = range(0, len(counts), join)
    return [*(edges[start] for start in starts), *edges[-1:]], [sum(counts[start : start + join]) for start in starts]


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
