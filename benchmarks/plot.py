"""Results as a picture: the spread of each ratio, its must beside it."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.results import BELOW, Result


def plot(results: Sequence[Result], file: Path) -> None:
    """Rows that are ratios and were measured, as a PNG; nothing where there is none."""
    shown = [result for result in results if result.above_one]
    if not shown:
        return
    figure = Figure(figsize=(9, 1.2 + 0.38 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for place, result in enumerate(reversed(shown)):
        median, least, most, must = (result.median or 0, result.least or 0, result.most or 0, result.must_value or 1)
        colour = (
            "tab:red" if result.status == BELOW else "tab:green" if not result.reason and not result.smoke else "grey"
        )
        axes.plot([least, most], [place, place], color=colour, linewidth=2)
        axes.plot(median, place, "o", color=colour)
        axes.plot(must, place, "|", color="black", markersize=14)
    axes.axvline(1, color="lightgrey", zorder=0)
    axes.set_yticks(range(len(shown)), [result.title for result in reversed(shown)])
    axes.set_xscale("log")
    axes.set_xticks(ticks := [0.5, 1, 2, 4, 8, 16], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("peer / ours: dot median, line least to most, bar must")
    figure.savefig(file, dpi=120)
