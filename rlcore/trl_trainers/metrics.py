"""Translation of what a TRL trainer logs into our metric names and sink."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlcore.results import MetricSink, StopTraining

Translation = Callable[[Mapping[str, Any]], dict[str, float]]
"""From one log of a trainer to our metrics; what has no name of ours is left out."""


OPTIMISER_NAMES = {"grad_norm": "optim/grad_norm", "learning_rate": "optim/learning_rate"}
"""What every trainer logs, and our metric names."""


class ReportCallback(TrainerCallback):
    """Hand each log of a trainer to `on_metrics`, under our names.

    Args:
        on_metrics: the sink; of several processes the first one reports.
        translate: see Translation.
        steps_per_point: optimiser steps that count as one step of the trace.

    Attributes:
        stop: what the sink raised to stop the run; None while it goes on. The trainer then saves and ends.
    """

    def __init__(self, on_metrics: MetricSink, translate: Translation, steps_per_point: int = 1):
        self.stop: StopTraining | None = None
        self.on_metrics = on_metrics
        self.translate = translate
        self.steps_per_point = steps_per_point

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log the last step too, however few steps a run has."""
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Translate and report the numbers of one log."""
        metrics = self.translate(logs or {})
        if not metrics or not state.is_world_process_zero:
            return
        try:
            self.on_metrics(state.global_step // self.steps_per_point, metrics)
        except StopTraining as stop:
            if args.world_size > 1:
                # The others do not hear of it: nobody would save with this process.
                raise
            self.stop = stop
            control.should_save = control.should_training_stop = True

    def newest(self, log_history: Iterable[Mapping[str, Any]], last_step: int) -> dict[str, float]:
        """The newest value of each metric up to an optimiser step."""
        metrics: dict[str, float] = {}
        for logs in log_history:
            if logs["step"] <= last_step:
                metrics |= self.translate(logs)
        return metrics


def renamed(names: Mapping[str, str]) -> Translation:
    """The translation that gives these names, TRL's to ours, and leaves out what a log does not have or know."""

    def translate(logs: Mapping[str, Any]) -> dict[str, float]:
        return {ours: float(logs[theirs]) for theirs, ours in names.items() if logs.get(theirs) is not None}

    return translate
