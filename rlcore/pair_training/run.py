"""One run of optimiser steps over preference pairs, which goes on from a checkpoint as if nothing had happened."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlcore.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from rlcore.forward_backward import AsyncTrainingClient, in_each_process, in_first_process, require_agreement
from rlcore.health import NonFiniteGuard
from rlcore.pair_training.folder import only_run_of_folder
from rlcore.pair_training.measuring import by_length, evaluate_pairs
from rlcore.pair_training.objective import PairObjective
from rlcore.pair_training.plan import PairPlan
from rlcore.processes import sums
from rlcore.results import MetricSink, ignore_metrics
from rlcore.run_folder import (
    pack_optimizer,
    put_weights,
    require_same_run,
    saved_when_stopped,
    trained_weights,
    unpack_optimizer,
)

VALIDATION_LOSS = "validation/loss"

logger = logging.getLogger(__name__)


class PairRun:
    """All optimiser steps over some pairs: where the run is, what it has seen since the last report, what was best.

    The pairs of an optimiser step are sorted by length before they are cut into micro-batches, which saves padding and
    changes no gradient. A step whose loss or gradient is not finite is skipped and counted.

    Launched in several processes, all take the same steps, each on its share of the rows, and hold the same weights and
    numbers after each; the first one alone reports and writes. They have to see the same folder.

    The caller sets the model's mode: train it in the mode that the loss wants. Evaluations restore it.

    Args:
        plan: steps, order, learning rate, intervals.
        client: holds the model; all its weights that take a gradient are trained.
        pairs: to train on; `plan.pair_count` of them.
        validation: pairs on which the best step is chosen; None takes the last step.
        folder: for checkpoints; None writes nothing, so nothing can be resumed and no earlier weights come back.
        identity: what must be equal for a checkpoint to belong to this run; plain JSON.
        figures: numbers of the data, reported before the first step of a new run.
        on_metrics: gets, at step 0 or where the run is taken up, `progress/total_steps`; every plan.logging_steps, the
            means over the pairs since the last report and `optim/*`; after an evaluation, `validation/*`.
        on_evaluated: called with the step after each evaluation, in every process.

    Attributes:
        step: optimiser steps so far, skipped ones included.
        total_steps: of the whole run.
        best_step, best_metrics: where `validation/loss` was least, 0 and empty before the first evaluation.
        last_metrics: the last report and what was measured since.
    """

    def __init__(
        self,
        plan: PairPlan,
        client: AsyncTrainingClient,
        pairs: PairObjective,
        validation: PairObjective | None = None,
        *,
        folder: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        figures: Mapping[str, float] | None = None,
        on_metrics: MetricSink = ignore_metrics,
        on_evaluated: Callable[[int], None] = lambda step: None,
    ):
        self.plan, self.client = plan, client
        self.pairs, self.validation = pairs, validation
        self.folder, self.identity, self.figures = folder, dict(identity or {}), dict(figures or {})
        self.on_metrics = on_metrics if client.processes.is_first else ignore_metrics
        self.on_evaluated = on_evaluated
        self.optimizer = torch.optim.AdamW(
            [weight for weight in client.model.parameters() if weight.requires_grad],
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            fused=True,
        )
        self.guard = NonFiniteGuard(plan.max_non_finite_steps)
        self.step = 0
        self.best_step = 0
        self.best_metrics: dict[str, float] = {}
        self.last_metrics: dict[str, float] = {}
        self._window: dict[str, float] = {}
        self._window_pairs = 0
        self._optim_metrics: dict[str, float] = {}

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.plan.total_steps

    def to_the_end(self) -> dict[str, list[float]]:
        """Take up the newest checkpoint, if any, and train what is left.

        Returns:
            By metric name, the mean over the pairs of each optimiser step of this call (not finite for a skipped one),
            and `validation/*` of each evaluation.

        Raises:
            ConfigError: processes of one run differ in settings or data.
            CheckpointError: the folder holds another run or one that is going on, or no whole checkpoint.
            TrainingDiverged: plan.max_non_finite_steps optimiser steps in a row were not finite.
            DeviceMemoryError: the device has no room for a single pair.
        """
        lengths = [self.pairs.length(row) for row in range(len(self.pairs))]
        facts = {"settings": asdict(self.plan), "data": [self.identity, lengths], "resume_dir": self.folder}
        require_agreement(self.client, facts)
        with only_run_of_folder(self.client, self.folder):
            return self._go_on()

    def load_best(self) -> None:
        """Put back the weights of the best step, which a run with a folder and validation pairs has kept."""
        if self.validation is None or self.best_step == 0:
            self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        elif self.folder is not None and self.best_step != self.step:
            path = self.folder / f"step-{self.best_step}"
            # Together: the first process may remove the folder next.
            in_each_process(self.client, lambda: self._put_weights(path, load_checkpoint(path)))

    def _go_on(self) -> dict[str, list[float]]:
        self._resume()
        self.on_metrics(self.step, {"progress/total_steps": float(self.total_steps)})
        if self.step == 0 and self.figures:
            self.on_metrics(0, self.figures)
        history: dict[str, list[float]] = {}
        for rows in self.plan.steps_from(self.step):
            metrics = self._optimize(rows)
            self.step += 1
            for name, value in (metrics | self._after_step()).items():
                history.setdefault(name, []).append(value)
        return history

    def _optimize(self, rows: list[int]) -> dict[str, float]:
        """One optimiser step; the means over its pairs."""
        learning_rate = self.plan.learning_rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = partial(self.pairs.loss, pair_count=len(rows), step=self.step)
        outcome = self.client.train_step(
            by_length(self.pairs, rows),
            lambda part: partial(loss, rows=part),
            self.optimizer,
            micro_batch_size=self.plan.micro_batch_size,
            max_grad_norm=self.plan.max_grad_norm,
        )
        self._optim_metrics = {"optim/learning_rate": learning_rate}
        if self.guard.accepts(loss=outcome.loss, grad_norm=outcome.grad_norm):
            self._optim_metrics["optim/grad_norm"] = outcome.grad_norm
            self._window = sums((self._window, outcome.metrics))
            self._window_pairs += len(rows)
        self._optim_metrics["optim/non_finite_steps"] = float(self.guard.skipped)
        return self.pairs.summary(outcome.metrics, len(rows))

    def _after_step(self) -> dict[str, float]:
        """Report, evaluate and save where it is due; the measures on the validation pairs."""
        plan, improved = self.plan, False
        logged = plan.is_due(self.step, plan.logging_steps)
        report = self._window_means() if logged else {}
        evaluation: dict[str, float] = {}
        if self.validation is not None and plan.is_due(self.step, plan.eval_every or plan.steps_per_epoch):
            evaluation = self._validate(self.validation)
            improved = evaluation[VALIDATION_LOSS] < self.best_metrics.get(VALIDATION_LOSS, math.inf)
        if improved:
            self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        if logged or evaluation:
            with saved_when_stopped(self.folder, self._save):
                self.on_metrics(self.step, report | evaluation)
        if self.folder is not None and (improved or plan.is_due(self.step, plan.save_every)):
            self._save(self.folder)
        return evaluation

    def _window_means(self) -> dict[str, float]:
        """The last step's figures and means over the pairs since the last report.

        Where no step was finite there is no mean, rather than an old one.
        """
        means = self.pairs.summary(self._window, self._window_pairs) if self._window_pairs else {}
        self._window, self._window_pairs = {}, 0
        self.last_metrics = means | self._optim_metrics
        return dict(self.last_metrics)

    def _validate(self, validation: PairObjective) -> dict[str, float]:
        measures = evaluate_pairs(self.client, validation, self.plan.micro_batch_size)
        self.last_metrics |= measures
        self.on_evaluated(self.step)
        return measures

    def _save(self, folder: Path) -> None:
        """Write a checkpoint."""
        in_first_process(self.client, partial(self._write, folder))

    def _write(self, folder: Path) -> Path:
        """Write a checkpoint. For the first process."""
        optimizer_tensors, optimizer_state = pack_optimizer(self.optimizer)
        state = {
            "identity": self.identity,
            "optimizer": optimizer_state,
            "guard": self.guard.state_dict(),
            "window": self._window,
            "window_pairs": self._window_pairs,
            "best_step": self.best_step,
            "best_metrics": _finite(self.best_metrics),
            "last_metrics": _finite(self.last_metrics),
        }
        tensors = {"model": trained_weights(self.client.model), "optimizer": optimizer_tensors}
        return save_checkpoint(folder, self.step, tensors, state, keep={self.best_step})

    def _resume(self) -> None:
        path = None if self.folder is None else in_first_process(self.client, partial(latest_checkpoint, self.folder))
        if path is not None:
            in_each_process(self.client, partial(self._go_on_from, path))
            logger.info("Resumed at step %d of %d.", self.step, self.total_steps)

    def _go_on_from(self, path: Path) -> None:
        checkpoint = load_checkpoint(path)
        state: Mapping[str, Any] = checkpoint.state
        require_same_run(path, state.get("identity", {}), self.identity)
        self._put_weights(path, checkpoint)
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], state["optimizer"])
        self.guard.load_state_dict(state["guard"])
        self.step = checkpoint.step
        self._window, self._window_pairs = state["window"], state["window_pairs"]
        self.best_step, self.best_metrics = state["best_step"], state["best_metrics"]
        self.last_metrics = state["last_metrics"]

    def _put_weights(self, path: Path, checkpoint: Checkpoint) -> None:
        self.client.evaluate(lambda model: put_weights(path, model, checkpoint.tensors["model"])).result()


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that JSON can hold. A measure that is not finite must not keep finite weights from being saved."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
