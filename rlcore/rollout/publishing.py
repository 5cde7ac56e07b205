"""The common interface of all trainers, for those that sample: data in, a published model folder out."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlcore.checkpoint import publish
from rlcore.results import TrainResult
from rlcore.rollout.checkpoints import BEST
from rlcore.rollout.prompts import Prompts
from rlcore.rollout.sharing import in_first_process
from rlcore.rollout.trainer import RolloutTrainer
from rlcore.run_folder import checkpoint_folder


def train_and_publish(
    trainer: RolloutTrainer, data: Mapping[str, Prompts], output_dir: Path, resume_dir: Path | None
) -> TrainResult:
    """Train on `data["train"]` and publish the best policy on `data["validation"]`, else the last one.

    The trainer is closed at the end.

    Args:
        trainer: fresh from its constructor.
        data: rows with a `prompt`; their other columns reach the reward source.
        output_dir: replaced by the new model folder, in one step.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up. None keeps none.
    """
    with contextlib.closing(trainer), checkpoint_folder(resume_dir, output_dir) as checkpoints:
        trainer.train(data["train"], validation_prompts=data.get("validation", ()), resume_dir=checkpoints)
        if not trainer.best_metrics:
            trainer.best_step = trainer.iteration
            trainer.save_model(checkpoints / BEST)

        def publish_best(_: object) -> None:
            with publish(output_dir) as draft:
                shutil.copytree(checkpoints / BEST, draft, dirs_exist_ok=True)

        in_first_process(trainer.training_client, publish_best)
    return TrainResult(Path(output_dir), trainer.best_step, trainer.final_metrics, trainer.best_metrics)
