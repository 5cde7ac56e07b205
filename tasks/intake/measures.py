"""Numbers about the usable rows of one kind: lengths, scripts, likeness of answers, agreement of people."""

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from tasks.intake.findings import SHOWN_ROWS, writable
from tasks.intake.kinds import Kind

MOST_BINS = 40
SIMILARITY_BINS = 10
NO_SCRIPT = "none"
"""Script of texts without letters."""


class Measures:
    """Collects the numbers of one kind.

    Attributes:
        kind: of the rows.
        unit: of lengths.
        objectives: what rows name as their `objective`.
    """

    def __init__(self, kind: Kind, unit: str):
        self.kind, self.unit = kind, unit
        self.objectives: set[str] = set()
        self._lengths = {name: array("L") for name in kind.texts}
        self._scripts: Counter[str] = Counter()
        self._similarity = numpy.zeros(SIMILARITY_BINS, dtype=numpy.int64)
        self._agreement = array("d")
        self._prompts: set[int] = set()

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        texts: Mapping[str, Sequence[str]],
        lengths: Mapping[str, Sequence[int]],
        scripts: Sequence[str | None],
    ) -> None:
        """Take up usable rows.

        Args:
            rows: as read, or mended.
            texts: of each column.
            lengths: of these, in the unit.
            scripts: main script of each prompt.
        """
        for name, numbers in lengths.items():
            self._lengths[name].extend(numbers)
        self._prompts.update(map(hash, texts["prompt"]))
        self._scripts.update(script or NO_SCRIPT for script in scripts)
        for row in rows:
            if isinstance(objective := row.get("objective"), str):
                self.objectives.add(writable(objective))
            agreement = row.get("agreement")
            if isinstance(agreement, int | float) and not isinstance(agreement, bool):
                self._agreement.append(agreement)
        if "chosen" in texts and rows:
            likeness = [_likeness(*pair) for pair in zip(texts["chosen"], texts["rejected"], strict=True)]
            self._similarity += numpy.histogram(likeness, bins=SIMILARITY_BINS, range=(0.0, 1.0))[0]

    @property
    def distinct_prompts(self) -> int:
        """Different prompts."""
        return len(self._prompts)

    def lengths(self) -> dict[str, Any]:
        """Mean, percentiles and histogram of each column; empty without rows."""
        return {name: self._summary(_numbers(values)) for name, values in self._lengths.items()}

    def scripts(self) -> dict[str, float]:
        """Share of each script of the prompts, the most frequent first."""
        return {script: count / self._scripts.total() for script, count in self._scripts.most_common()}

    def pairs(self) -> dict[str, Any]:
        """Share of the pairs whose chosen answer is the longer, equal lengths counting half; and what else is known."""
        chosen, rejected = (_numbers(self._lengths[name]) for name in ("chosen", "rejected"))
        longer = float(numpy.mean((chosen > rejected) + 0.5 * (chosen == rejected))) if len(chosen) else None
        edges = numpy.linspace(0.0, 1.0, SIMILARITY_BINS + 1).round(2).tolist()
        # Shares of the mean: a sum of very large numbers would be infinite.
        count = len(self._agreement)
        mean = math.fsum(value / count for value in self._agreement) if count else None
        return {
            "chosen_longer_share": longer,
            "objectives": sorted(self.objectives)[:SHOWN_ROWS],
            "agreement": {"count": count, "mean": mean},
            "similarity": {"edges": edges, "counts": self._similarity.tolist()},
        }

    def _summary(self, numbers: NDArray[numpy.uint64]) -> dict[str, Any]:
        if not len(numbers):
            return {}
        low, high = int(numbers.min()), int(numbers.max())
        # Bins of whole numbers, all of one width.
        width = max(1, -(-(high - low + 1) // MOST_BINS))
        edges = numpy.arange(low, high + width + 1, width)
        counts, _ = numpy.histogram(numbers, bins=edges)
        return {
            "unit": self.unit,
            "mean": float(numbers.mean()),
            **{
                name: float(numpy.percentile(numbers, share))
                for name, share in (("p50", 50), ("p95", 95), ("max", 100))
            },
            "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        }


def _numbers(values: "array[int]") -> NDArray[numpy.uint64]:
    return numpy.frombuffer(values, dtype=numpy.dtype("L")) if values else numpy.array([], dtype=numpy.dtype("L"))


def _likeness(first: str, second: str) -> float:
    """Jaccard index of the words of two texts."""
    words, others = set(first.split()), set(second.split())
    shared = len(words & others)
    return shared / (len(words) + len(others) - shared) if words or others else 1.0
