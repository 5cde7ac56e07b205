"""What goes into and comes out of a trainer, whatever the algorithm: reward source, reports, result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MetricSink = Callable[[int, Mapping[str, float]], None]
"""`on_metrics(step, {name: value})`: numbers of one step."""

SampleSink = Callable[[int, list[dict[str, Any]]], None]
"""`on_samples(step, rows)`: responses of one evaluation, for people to read and for checkers that do not train."""


class StopTraining(BaseException):
    """Raised by a metric sink to end a run between two steps.

    A trainer of a single process that keeps checkpoints writes one first, so that the run goes on from there. Not an
    Exception, so that no library swallows it.
    """


class RewardSource(Protocol):
    """Scores responses: a reward model, a function or an environment."""

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None
    ) -> list[float]:
        """One score for each response, in the order given. `metadata` holds the other columns of each prompt's row."""
        ...


@dataclass(frozen=True)
class TrainResult:
    """Where the trained model lies and how good it is.

    Attributes:
        model_dir: the published model folder.
        best_step: step of the published weights.
        final_metrics: metrics of the last step.
        best_metrics: metrics of the published step.
    """

    model_dir: Path
    best_step: int
    final_metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)


def ignore_metrics(step: int, metrics: Mapping[str, float]) -> None:
    """A metric sink that keeps nothing."""


def ignore_samples(step: int, rows: list[dict[str, Any]]) -> None:
    """A sample sink that keeps nothing."""
