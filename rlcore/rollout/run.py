"""One run over prompts: iterations, evaluations, reports and checkpoints, and how it is taken up."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.forward_backward import require_agreement
from rlcore.pair_training import only_run_of_folder
from rlcore.rollout.figures import rollout_metrics, sample_rows, validation_metrics
from rlcore.rollout.prompts import EncodedPrompt
from rlcore.run_folder import saved_when_stopped

if TYPE_CHECKING:
    from rlcore.rollout.trainer import RolloutTrainer

logger = logging.getLogger(__name__)


class RolloutRun:
    """The iterations of a trainer until so many are done, those of a checkpoint included.

    Args:
        trainer: samples, judges and learns; counts its iterations.
        total: iterations of the whole run.
        prompts: to train on.
        validation: on which the best iteration is chosen; may be none.
        folder: for checkpoints; None writes nothing.
    """

    def __init__(
        self,
        trainer: "RolloutTrainer[Any]",
        total: int,
        prompts: Sequence[EncodedPrompt],
        validation: Sequence[EncodedPrompt],
        folder: Path | None,
    ):
        self.trainer, self.total = trainer, total
        self.prompts, self.validation, self.folder = prompts, validation, folder
        self._reported: list[Mapping[str, float]] = []

    def to_the_end(self) -> dict[str, list[float]]:
        """Take up the newest checkpoint, if any, and do what is left.

        Returns:
            see RolloutTrainer.train.

        Raises:
            RLCoreError, CheckpointError, TrainingDiverged: see there.
        """
        trainer, folder = self.trainer, self.folder
        trainer.checkpoints.belong_to(self.prompts, self.validation)
        settings = trainer.config.model_dump(mode="json", exclude={"device"})
        facts = {"config": settings, **trainer.checkpoints.data, "num_iterations": self.total, "resume_dir": folder}
        require_agreement(trainer.training_client, facts)
        with only_run_of_folder(trainer.training_client, folder):
            if folder:
                trainer.take_up(folder)
            trainer.mark.require_whole()
            if 0 < self.total <= trainer.iteration and trainer.training_client.processes.is_first:
                logger.warning(
                    "%d of %d iterations are done already; nothing is left to train.", trainer.iteration, self.total
                )
            self._go_on()
        columns = {**trainer.HISTORY, **(trainer.EVALUATION_HISTORY if self.validation else {})}
        return {name: [each[metric] for each in self._reported if metric in each] for name, metric in columns.items()}

    def _go_on(self) -> None:
        trainer, folder = self.trainer, self.folder
        self._report({"progress/total_steps": float(self.total)})
        if trainer.iteration == 0 and self.validation:
            self._report(self._validate())
            if folder:
                trainer.save_checkpoint(folder)
        while trainer.iteration < self.total:
            metrics = self._iterate()
            if self.validation and self._is_due(trainer.config.eval_every):
                metrics |= self._validate()
            trainer.mark.end()
            with saved_when_stopped(folder, trainer.save_checkpoint):
                self._report(metrics)
            # The best weights are those of their checkpoint: no kill leaves one without the other.
            if folder and (trainer.best_step == trainer.iteration or self._is_due(trainer.config.save_every)):
                trainer.save_checkpoint(folder)

    def _iterate(self) -> dict[str, float]:
        trainer = self.trainer
        chosen = trainer.choose(self.prompts, trainer.iteration)
        rollout = trainer.collect(self.prompts, chosen, ("rollout", trainer.iteration))
        metrics = rollout_metrics(rollout)
        if trainer.training_client.processes.is_first:
            trainer.kl_watch.see(metrics["kl/ref_token_mean"])
        started = time.perf_counter()
        trainer.mark.begin(trainer.iteration)
        metrics |= trainer.learn(rollout)
        metrics["time/update_s"] = time.perf_counter() - started
        trainer.iteration += 1
        return metrics

    def _report(self, metrics: Mapping[str, float]) -> None:
        trainer = self.trainer
        self._reported.append(metrics)
        trainer.final_metrics |= metrics
        if trainer.training_client.processes.is_first:
            trainer.on_metrics(trainer.iteration, metrics)

    def _validate(self) -> dict[str, float]:
        """Evaluate; note the iteration whose score less the configured KL penalty is the highest so far."""
        trainer = self.trainer
        metrics = evaluate(trainer, self.validation)
        if metrics["validation/objective"] > trainer.best_metrics.get("validation/objective", -math.inf):
            trainer.best_step, trainer.best_metrics = trainer.iteration, metrics
        return metrics

    def _is_due(self, interval: int) -> bool:
        return self.trainer.iteration == self.total or self.trainer.iteration % interval == 0


def evaluate(trainer: "RolloutTrainer[Any]", prompts: Sequence[EncodedPrompt]) -> dict[str, float]:
    """See RolloutTrainer.evaluate."""
    rollout = trainer.collect(prompts, range(len(prompts)), ("validation", 0))
    if trainer.training_client.processes.is_first:
        trainer.on_samples(trainer.iteration, sample_rows(rollout))
    return validation_metrics(rollout, trainer.config.kl_penalty_coef)
