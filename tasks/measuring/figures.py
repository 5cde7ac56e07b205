"""The figures of an evaluation, as PNG: what was learned, at which distance, and whether the reward was gamed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Row = Mapping[str, float]

PROXY, GOLD, NUMBER, FORMAT, GREY = "#c2571a", "#1f6fb2", "#2a9d6f", "#8e6bbf", "#767676"
CHECKER_COLOURS = (GOLD, NUMBER, FORMAT)
SCORE_LABEL = "reward model score (reward units)"
REWARD_VIEW = "validation/reward_model_score_mean"
"""What the reward model says of answers to validation prompts, whatever it was that training maximised."""
PAIR_PANELS = {
    "loss": "loss (nats per pair)",
    "accuracy": "preferred response ahead (share of pairs)",
    "margin_mean": "reward margin (reward units)",
    "log_odds_ratio_mean": "log odds ratio (nats)",
}
"""Last part of a metric's name → what it is, in the figure of preference pairs."""
SIZE = (9.0, 5.2)
"""In inches, at 100 dots each."""
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
}


@dataclass(frozen=True)
class FigureData:
    """What the figures show.

    Attributes:
        policy: the trace of the policy's training, one row for each report.
        checker: what reward model and checker say of answers to validation prompts, one row for each evaluation.
        results: contents of evaluate.json.
        published_step: step of the published weights; None where it is unknown.
        kl_target: KL that training steers for, in nats per response; None where it has another unit.
        kl_budget: KL that the gate allows, in nats per response.
    """

    policy: Sequence[Row]
    checker: Sequence[Row]
    results: Row
    published_step: int | None = None
    kl_target: float | None = None
    kl_budget: float | None = None

    @property
    def samples(self) -> bool:
        """Whether the policy learned from responses that it sampled; else from preference pairs."""
        return any("kl/ref_sequence_mean" in row for row in self.policy)

    @property
    def step(self) -> str:
        """What a step of the trace is."""
        return "iteration" if self.samples else "optimiser step"


def draw(data: FigureData, folder: Path) -> None:
    """Draw the figures that fit how the policy learned into a folder, named as the keys of FIGURES."""
    folder.mkdir(parents=True, exist_ok=True)
    others = PAIR_FIGURES if data.samples else ROLLOUT_FIGURES
    for name, drawing in FIGURES.items():
        if name in others:
            continue
        figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        with rc_context(STYLE):
            drawing(figure, data)
        # Without the writer's version in it, equal figures are equal bytes.
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})


def draw_learning(figure: Figure, data: FigureData) -> None:
    """What the reward model and what the checker say of answers to validation prompts, by step."""
    left = figure.subplots()
    _curve(left, data.checker, REWARD_VIEW, PROXY, "reward model score", linestyle="-.")
    _axis(left, data.step, SCORE_LABEL, PROXY)
    _mark_published(left, data)
    left.set_title("Reward model score and checker on validation prompts")
    if keys := _checker_keys(data):
        right = _right_axis(left, "checker, mean over validation prompts")
        start = data.checker[0]
        for name, colour in zip(keys, CHECKER_COLOURS, strict=False):
            _curve(right, data.checker, f"validation/{name}", colour, _words(name))
            if start["step"] == 0:
                right.axhline(start[f"validation/{name}"], color=colour, linestyle="--", linewidth=1, alpha=0.6)
        if start["step"] == 0:
            right.plot([], [], color=GREY, linestyle="--", linewidth=1, label="SFT")
    _legend(figure)


def draw_kl(figure: Figure, data: FigureData) -> None:
    """Distance to the reference by iteration, and the coefficient that holds it where a controller moves it."""
    steered = any("kl/coef" in row for row in data.policy)
    upper, *lower = figure.subplots(1 + steered, sharex=True, squeeze=False, height_ratios=(2, 1)[: 1 + steered]).flat
    _curve(upper, data.policy, "kl/ref_sequence_mean", GOLD, "sampled in training", marker="")
    _curve(upper, data.policy, "validation/ref_sequence_mean", NUMBER, "validation prompts")
    for height, colour, label in ((data.kl_target, GREY, "target"), (data.kl_budget, PROXY, "budget of the gate")):
        if height is not None:
            upper.axhline(height, color=colour, linestyle="--", linewidth=1, label=f"{label}: {height:g}")
    _axis(upper, "" if steered else data.step, "KL to the reference\n(nats per response)")
    upper.set_title("Distance to the SFT model and the penalty on it" if steered else "Distance to the SFT model")
    for axes in lower:
        _curve(axes, data.policy, "kl/coef", FORMAT, "_coefficient", marker="")
        _axis(axes, data.step, "KL coefficient\n(reward units per nat)")
        axes.set_ylim(bottom=0)
    _mark_published(upper, data)
    _legend(figure)


def draw_over_optimisation(figure: Figure, data: FigureData) -> None:
    """Score and checker over the distance travelled (Gao et al. 2023): apart at the right end means a gamed reward."""
    distance = {
        int(row["step"]): math.sqrt(max(row["validation/ref_sequence_mean"], 0.0))
        for row in data.policy
        if "validation/ref_sequence_mean" in row
    }
    left = figure.subplots()
    _axis(left, "distance to the SFT model: square root of KL (√nats per response)", SCORE_LABEL, PROXY)
    left.set_title("Over-optimisation: score and checker over the distance travelled")
    series = [(left, data.checker, REWARD_VIEW, PROXY, "reward model score")]
    if keys := _checker_keys(data):
        name = keys[0]
        right = _right_axis(left, f"{_words(name)}, mean over validation prompts")
        series.append((right, data.checker, f"validation/{name}", GOLD, _words(name)))
    for axes, rows, name, colour, label in series:
        points = {int(row["step"]): row[name] for row in rows if name in row and row["step"] in distance}
        x = [distance[step] for step in points]
        axes.plot(x, list(points.values()), color=colour, marker="o", markersize=4, linewidth=1.5, label=label)
        if data.published_step in points:
            place = distance[data.published_step], points[data.published_step]
            axes.plot(*place, marker="*", markersize=16, color=colour, markeredgecolor="white")
    if data.published_step is not None:
        left.plot([], [], marker="*", markersize=11, linestyle="", color=GREY, label="published checkpoint")
    _legend(figure)


def draw_health(figure: Figure, data: FigureData) -> None:
    """What moves first when something is wrong: entropy, length, endings, variety."""
    panels = (
        ("policy/entropy_mean", "entropy (nats per token)", GOLD),
        ("response/length_mean", "length (tokens per response)", NUMBER),
        ("response/eos_fraction", "responses that end (share)", FORMAT),
        ("response/distinct_count", "distinct answers (of one batch)", PROXY),
    )
    for axes, (name, label, colour) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        _curve(axes, data.policy, name, colour, label, marker="")
        _axis(axes, "", label)
        axes.margins(y=0.15)
    for axes in figure.axes[2:]:
        axes.set_xlabel(data.step)
    figure.suptitle("Health of the policy, responses sampled in training")


def draw_pairs(figure: Figure, data: FigureData) -> None:
    """How well the policy tells the preferred response from the other one, by optimiser step."""
    reported = {name for row in data.policy for name in row}
    shown = [name for name in PAIR_PANELS if reported & {f"{topic}/{name}" for topic in ("dpo", "orpo")}]
    for axes, name in zip(figure.subplots(1, max(len(shown), 1), squeeze=False).flat, shown, strict=False):
        for topic in ("dpo", "orpo"):
            _curve(axes, data.policy, f"{topic}/{name}", GOLD, "training pairs", marker="")
        _curve(axes, data.policy, f"validation/{name}", NUMBER, "validation pairs")
        _axis(axes, data.step, PAIR_PANELS[name])
        _mark_published(axes, data)
    figure.suptitle("What the policy makes of the preference pairs")
    _legend(figure)


def draw_comparison(figure: Figure, data: FigureData) -> None:
    """Models side by side on held-out prompts, with 95 % intervals by prompt group."""
    measures = [("gold", "sampled", GOLD), ("gold_greedy", "greedy", NUMBER)]
    if not any(name.startswith("gold/") for name in data.results):
        measures = [("reward/score_mean", "reward model score", PROXY)]
    models = [name.rpartition("/")[2] for name in data.results if name.startswith(f"{measures[0][0]}/")]
    models = [name for name in models if not name.endswith(("_low", "_high")) and not name.startswith("gain")]
    axes = figure.subplots()
    width = 0.8 / len(measures)
    for index, (measure, label, colour) in enumerate(measures):
        for position, model in enumerate(models):
            height = data.results.get(f"{measure}/{model}")
            if height is None:
                continue
            ends = [data.results.get(f"{measure}/{model}_{end}", height) for end in ("low", "high")]
            x = position + (index - (len(measures) - 1) / 2) * width
            axes.bar(x, height, 0.92 * width, color=colour, label=label if position == 0 else None)
            axes.errorbar(
                x, height, [[height - ends[0]], [ends[1] - height]], color="#333333", capsize=4, linewidth=1.2
            )
            axes.annotate(f"{height:.2f}", (x, max(height, ends[1])), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(models)), [model.upper() if model == "sft" else model for model in models])
    axes.margins(y=0.12)
    _axis(axes, "", "mean over held-out prompts")
    axes.grid(visible=False, axis="x")
    axes.set_title("Held-out prompts, 95 % bootstrap intervals by prompt group")
    _legend(figure)


ROLLOUT_FIGURES: Mapping[str, Callable[[Figure, FigureData], None]] = {
    "kl": draw_kl,
    "over_optimisation": draw_over_optimisation,
    "health": draw_health,
}
"""Figures of responses that were sampled in training."""

PAIR_FIGURES: Mapping[str, Callable[[Figure, FigureData], None]] = {"pairs": draw_pairs}
"""Figures of training on preference pairs."""

FIGURES: Mapping[str, Callable[[Figure, FigureData], None]] = {
    "learning": draw_learning,
    **ROLLOUT_FIGURES,
    **PAIR_FIGURES,
    "comparison": draw_comparison,
}
"""File name without `.png` → what draws it."""


def _curve(
    axes: Axes, rows: Sequence[Row], name: str, colour: str, label: str, *, marker: str = "o", linestyle: str = "-"
) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
        x, y = zip(*points, strict=True)
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "linestyle": linestyle, "linewidth": 1.6}
        axes.plot(x, y, color=colour, label=label, **style)


def _axis(axes: Axes, x_label: str, y_label: str, colour: str = "black") -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label, color=colour)


def _right_axis(left: Axes, label: str) -> Axes:
    """A second scale on the right. Its grid stays off, or the lines of the two scales would cross."""
    right = left.twinx()
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    right.set_ylabel(label, color=GOLD)
    return right


def _mark_published(axes: Axes, data: FigureData) -> None:
    if data.published_step is not None:
        axes.axvline(data.published_step, color=GREY, linestyle=":", linewidth=1.2, label="published checkpoint")


def _legend(figure: Figure) -> None:
    """One legend for the curves of all axes, below what it explains."""
    named = {}
    for axes in figure.axes:
        named.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)})
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)


def _checker_keys(data: FigureData) -> list[str]:
    """What the checker measures, `gold` first; nothing where there is none."""
    first = data.checker[0] if data.checker else {}
    names = [name for name in first if name.startswith("validation/") and name != REWARD_VIEW]
    return sorted((name.removeprefix("validation/") for name in names), key=lambda name: name != "gold")


def _words(name: str) -> str:
    return name.replace("_", " ")
