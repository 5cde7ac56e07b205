"""Translation of what a TRL trainer logs into our metric names and sink."""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlcore.results import MetricSink


class ReportCallback(TrainerCallback):
    """Hand each log of a trainer to `on_metrics`, under our names; what has no name of ours is left out.

    Args:
        on_metrics: the sink.
        names: TRL's key to our metric name.
    """

    def __init__(self, on_metrics: MetricSink, names: Mapping[str, str]):
        self.on_metrics = on_metrics
        self.names = names
        self.last: dict[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Translate and report the numbers of one log."""
        logs = logs or {}
        metrics = {ours: float(logs[theirs]) for theirs, ours in self.names.items() if theirs in logs}
        if metrics:
            self.last = metrics
            self.on_metrics(state.global_step, metrics)
