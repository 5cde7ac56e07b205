"""A run as it is seen while it trains: a bar on a terminal, lines elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rlcore.results import MetricSink

TOTAL_STEPS = "progress/total_steps"

SHOWN = {
    "sft/loss": "loss",
    "reward_model/loss": "loss",
    "dpo/loss": "loss",
    "orpo/loss": "loss",
    "reward_model/accuracy": "accuracy",
    "dpo/accuracy": "accuracy",
    "orpo/accuracy": "accuracy",
    "reward/score_mean": "score",
    "kl/ref_token_mean": "KL/token",
    "kl/ref_k3_token_mean": "KL/token (k3)",
    "response/length_mean": "tokens",
    "validation/loss": "validation loss",
    "validation/accuracy": "validation accuracy",
    "validation/score_mean": "validation score",
}
"""Metrics that are shown while a run trains, and what they are called there."""


@contextmanager
def shown_progress(title: str) -> Iterator[MetricSink]:
    """A sink that shows the numbers it gets: as a bar on a terminal, else as one line for each report.

    The number of steps comes with `progress/total_steps`. Within the block libraries show no bars of their own.

    Args:
        title: what is trained.
    """
    console = Console()
    with _without_other_bars(), _bar(console, title) if console.is_terminal else nullcontext(_Lines(title).log) as show:
        yield show


@contextmanager
def _bar(console: Console, title: str) -> Iterator[MetricSink]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[numbers]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(escape(title), total=None, numbers="")
        numbers: dict[str, str] = {}

        def show(step: int, metrics: Mapping[str, float]) -> None:
            numbers.update(_shown(metrics))
            progress.update(
                task,
                completed=step,
                total=metrics.get(TOTAL_STEPS, progress.tasks[task].total),
                numbers="  ".join(f"{name} {value}" for name, value in numbers.items()),
            )

        yield show


@contextmanager
def _without_other_bars() -> Iterator[None]:
    """Hide the bars of datasets and transformers. Both take long to load, and training needs them anyway."""
    import datasets
    from transformers.utils import logging

    hidden = [
        (logging.enable_progress_bar, logging.disable_progress_bar, logging.is_progress_bar_enabled()),
        (datasets.enable_progress_bars, datasets.disable_progress_bars, not datasets.are_progress_bars_disabled()),
    ]
    for _, hide, _ in hidden:
        hide()
    try:
        yield
    finally:
        for show, _, was_shown in hidden:
            if was_shown:
                show()


class _Lines:
    """One line for each report."""

    def __init__(self, title: str):
        self.title, self.total = title, 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.total = int(metrics.get(TOTAL_STEPS, self.total))
        numbers = ", ".join(f"{name} {value}" for name, value in _shown(metrics).items())
        if numbers:
            print(f"{self.title} {step}/{self.total}: {numbers}", flush=True)


def _shown(metrics: Mapping[str, float]) -> dict[str, str]:
    # A KL of -1e-7 is rounding: 0, and without a sign.
    return {SHOWN[name]: f"{round(value, 6):z.4g}" for name, value in metrics.items() if name in SHOWN}
