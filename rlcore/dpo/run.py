"""One run of optimiser steps over preference pairs, which goes on from a checkpoint as if nothing had happened."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.checkpoint import latest_checkpoint, load_checkpoint, pack_optimizer, save_checkpoint, unpack_optimizer
from rlcore.configs import DPOConfig
from rlcore.dpo.dataset import PreferenceDataset
from rlcore.dpo.loss import ReferencedPairs, pair_loss
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.health import NonFiniteGuard
from rlcore.results import MetricSink
from rlcore.run_folder import require_same_run
from rlcore.schedule import learning_rate_share
from rlcore.streams import permutation

HISTORY = {
    "loss": "dpo/loss",
    "accuracy": "dpo/accuracy",
    "reward_margin": "dpo/margin_mean",
    "chosen_rewards": "dpo/chosen_reward_mean",
    "rejected_rewards": "dpo/rejected_reward_mean",
}
"""What training returns for each optimiser step, and the metric behind each list."""

EVALUATION = {
    "eval_loss": "validation/loss",
    "eval_accuracy": "validation/accuracy",
    "eval_margin": "validation/margin_mean",
}
"""The same for each evaluation."""

logger = logging.getLogger(__name__)


def epoch_steps(dataset: PreferenceDataset, config: DPOConfig, epoch: int) -> Iterator[list[list[int]]]:
    """The batches of each optimiser step of an epoch, in an order that (seed, epoch) fixes.

    The pairs of a step are sorted by length before they are cut into batches, which saves padding and changes no
    gradient. The last step takes what is left.
    """
    order = permutation(len(dataset), config.seed, "pairs", epoch)
    pairs_per_step = config.batch_size * config.gradient_accumulation_steps
    for start in range(0, len(order), pairs_per_step):
        rows = sorted(order[start : start + pairs_per_step], key=dataset.length)
        yield [rows[first : first + config.batch_size] for first in range(0, len(rows), config.batch_size)]


def length_batches(dataset: PreferenceDataset, batch_size: int) -> list[list[int]]:
    """All rows from the shortest to the longest pair, in batches."""
    rows = sorted(range(len(dataset)), key=dataset.length)
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def evaluate_pairs(client: AsyncTrainingClient, pairs: ReferencedPairs, config: DPOConfig) -> dict[str, float]:
    """Loss, strict accuracy and mean margin of the policy over all pairs."""
    totals: dict[str, float] = {}
    for rows in length_batches(pairs.dataset, config.batch_size):
        batch, ref_sequence_logprobs = pairs.batch(rows, client.device)
        measure = partial(
            pair_loss, batch=batch, ref_sequence_logprobs=ref_sequence_logprobs, pair_count=len(rows), config=config
        )
        _, sums = client.evaluate(measure).result()
        _add(totals, {name: value.item() for name, value in sums.items()})
    return {key: totals[name.replace("validation/", "dpo/")] / len(pairs) for key, name in EVALUATION.items()}


class TrainingRun:
    """All optimiser steps over some pairs: where the run is, what it has seen since the last report, what was best.

    Args:
        config: settings.
        client: trains the policy.
        pairs: to train on.
        validation: pairs on which the best step is chosen; None takes the last step.
        folder: for checkpoints; None writes nothing.
        identity: what must be equal for a checkpoint to belong to this run.
        on_metrics: gets the means over the pairs since the last report.
        on_evaluated: called with the step after each evaluation.
    """

    def __init__(
        self,
        config: DPOConfig,
        client: AsyncTrainingClient,
        pairs: ReferencedPairs,
        validation: ReferencedPairs | None,
        *,
        folder: Path | None,
        identity: Mapping[str, Any],
        on_metrics: MetricSink,
        on_evaluated: Callable[[int], None],
    ):
        self.config, self.client = config, client
        self.pairs, self.validation = pairs, validation
        self.folder, self.identity = folder, dict(identity)
        self.on_metrics, self.on_evaluated = on_metrics, on_evaluated
        steps_per_epoch = math.ceil(len(pairs) / (config.batch_size * config.gradient_accumulation_steps))
        self.total_steps = steps_per_epoch * config.num_epochs
        self.warmup_steps = math.ceil(config.warmup_ratio * self.total_steps)
        self.optimizer = torch.optim.AdamW(
            trained_weights(client.model).values(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.guard = NonFiniteGuard(config.max_non_finite_steps)
        self.step = 0
        self.window: dict[str, float] = {}
        self.window_pairs = 0
        self.best_step = 0
        self.best_metrics: dict[str, float] = {}
        self.last_metrics: dict[str, float] = {}

    def to_the_end(self) -> dict[str, list[float]]:
        """Take up the newest checkpoint, if any, and train what is left.

        Returns:
            HISTORY for each step and, with validation pairs, EVALUATION for each evaluation of this call.
        """
        self._resume()
        self.on_metrics(self.step, {"progress/total_steps": float(self.total_steps)})
        if self.step == 0:
            self.on_metrics(0, self.pairs.dataset.figures())
        evaluated = EVALUATION if self.validation else {}
        history: dict[str, list[float]] = {name: [] for name in (*HISTORY, *evaluated)}
        epochs = (epoch_steps(self.pairs.dataset, self.config, epoch) for epoch in range(self.config.num_epochs))
        for batches in islice(chain.from_iterable(epochs), self.step, None):
            metrics = self._optimize(batches)
            self.step += 1
            metrics |= self._after_step()
            for name, metric in (HISTORY | evaluated).items():
                if metric in metrics:
                    history[name].append(metrics[metric])
        return history

    def load_best(self) -> None:
        """Put back the weights of the best step, which a run with a folder and validation pairs has kept."""
        if self.validation is None or self.best_step == 0:
            self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        elif self.folder is not None and self.best_step != self.step:
            self._load_weights(load_checkpoint(self.folder / f"step-{self.best_step}").tensors["model"])

    def _optimize(self, batches: list[list[int]]) -> dict[str, float]:
        """One optimiser step over all pairs of the batches; the means over these pairs."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * self._learning_rate_share()
        pair_count = sum(map(len, batches))
        passes = []
        for rows in batches:
            batch, ref_sequence_logprobs = self.pairs.batch(rows, self.client.device)
            loss = partial(
                pair_loss,
                batch=batch,
                ref_sequence_logprobs=ref_sequence_logprobs,
                pair_count=pair_count,
                config=config,
            )
            passes.append(self.client.backward(loss))
        outcome = self.client.optim_step(self.optimizer, max_grad_norm=config.max_grad_norm).result()
        sums: dict[str, float] = {}
        for output in (future.result() for future in passes):
            _add(sums, {name: value for name, value in output.metrics.items() if name.startswith("dpo/")})
        if self.guard.accepts(loss=sums["dpo/loss"], grad_norm=outcome.grad_norm):
            _add(self.window, sums)
            self.window_pairs += pair_count
            self.last_metrics["optim/grad_norm"] = outcome.grad_norm
        self.last_metrics["optim/learning_rate"] = outcome.learning_rate
        self.last_metrics["optim/non_finite_steps"] = float(self.guard.skipped)
        return {name: value / pair_count for name, value in sums.items()}

    def _learning_rate_share(self) -> float:
        """Share of the peak: linear warm-up, then cosine to min_learning_rate_ratio."""
        share = learning_rate_share(self.step, self.warmup_steps, self.total_steps)
        if self.step < self.warmup_steps:
            return share
        least = self.config.min_learning_rate_ratio
        return least + (1 - least) * share

    def _after_step(self) -> dict[str, float]:
        """Report, evaluate and save where it is due; the measures on the validation pairs."""
        last = self.step == self.total_steps
        logged = last or self.step % self.config.logging_steps == 0
        report = self._window_means() if logged else {}
        evaluation: dict[str, float] = {}
        improved = False
        if self.validation and (last or self.step % self.config.eval_every == 0):
            evaluation = self._validate(self.validation)
            improved = evaluation["validation/loss"] < self.best_metrics.get("validation/loss", math.inf)
        if improved:
            self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        if logged or evaluation:
            self.on_metrics(self.step, report | evaluation)
        if self.folder and (improved or last or self.step % self.config.save_every == 0):
            self._save(self.folder)
        return evaluation

    def _window_means(self) -> dict[str, float]:
        """Means over the pairs since the last report, which are none where every step was skipped."""
        means = {name: value / self.window_pairs for name, value in self.window.items()}
        self.window, self.window_pairs = {}, 0
        self.last_metrics |= means
        return means | {name: value for name, value in self.last_metrics.items() if name.startswith("optim/")}

    def _validate(self, validation: ReferencedPairs) -> dict[str, float]:
        measures = evaluate_pairs(self.client, validation, self.config)
        evaluation = {EVALUATION[name]: value for name, value in measures.items()}
        self.last_metrics |= evaluation
        self.on_evaluated(self.step)
        return evaluation

    def _save(self, folder: Path) -> None:
        optimizer_tensors, optimizer_state = pack_optimizer(self.optimizer)
        state: dict[str, Any] = {
            "identity": self.identity,
            "optimizer": optimizer_state,
            "guard": self.guard.state_dict(),
            "window": self.window,
            "window_pairs": self.window_pairs,
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "last_metrics": self.last_metrics,
        }
        tensors = {"model": trained_weights(self.client.model), "optimizer": optimizer_tensors}
        save_checkpoint(folder, self.step, tensors, state, keep={self.best_step})

    def _resume(self) -> None:
        path = latest_checkpoint(self.folder) if self.folder else None
        if path is None:
            return
        checkpoint = load_checkpoint(path)
        state: Mapping[str, Any] = checkpoint.state
        require_same_run(path, state["identity"], self.identity)
        self._load_weights(checkpoint.tensors["model"])
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], state["optimizer"])
        self.guard.load_state_dict(state["guard"])
        self.step = checkpoint.step
        self.window, self.window_pairs = state["window"], state["window_pairs"]
        self.best_step, self.best_metrics = state["best_step"], state["best_metrics"]
        self.last_metrics = state["last_metrics"]
        logger.info("Resumed at step %d of %d.", self.step, self.total_steps)

    def _load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in trained_weights(self.client.model).items():
                weight.copy_(tensors[name])


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights that training changes. Frozen ones come from the model's own folder."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _add(totals: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + value
