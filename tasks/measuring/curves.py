"""The course of a policy's training as small tables, which DVC compares between revisions: `dvc plots diff`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.records.artifacts import write_text

CURVES: dict[str, tuple[str, ...]] = {
    "kl": ("kl/ref_sequence_mean",),
    "reward": ("reward/score_mean",),
    "accuracy": ("dpo/accuracy", "orpo/accuracy"),
}
"""Name of a table and of its column → the metric that it shows, whichever of them the algorithm reports."""


def write_curves(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write a table of `step` and value for each curve; one that the algorithm does not have is empty.

    Args:
        rows: of the policy's trace.
        folder: gets the tables, as `<name>.csv`.
    """
    for name, metrics in CURVES.items():
        lines = [f"step,{name}", *(f"{step},{value!r}" for step, value in _points(rows, metrics))]
        write_text(folder / f"{name}.csv", "\n".join(lines) + "\n")


def _points(rows: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row[metric])) for row in rows for metric in metrics if metric in row]
