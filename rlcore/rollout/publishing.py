"""The common interface of all trainers, for those that sample: data in, a published model folder out."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.pair_training import require_splits, shared_checkpoint_folder
from rlcore.results import TrainResult
from rlcore.rollout.prompts import Prompts
from rlcore.rollout.trainer import RolloutTrainer


def train_and_publish(
    trainer: RolloutTrainer[Any], data: Mapping[str, Prompts], output_dir: Path, resume_dir: Path | None
) -> TrainResult:
    """Train on `data["train"]` and publish the best policy on `data["validation"]`, else the last one.

    The trainer is closed at the end.

    Args:
        trainer: fresh from its constructor.
        data: rows with a `prompt`; their other columns reach the reward source.
        output_dir: replaced by the new model folder, in one step.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up. None keeps none.

    Raises:
        DataError: there is no split train.
        ConfigError, CheckpointError: before the first step, see shared_checkpoint_folder.
    """
    client = trainer.training_client
    with contextlib.closing(trainer), shared_checkpoint_folder(client, resume_dir, output_dir) as checkpoints:
        require_splits(data)
        trainer.train(data["train"], validation_prompts=data.get("validation", ()), resume_dir=checkpoints)
        trainer.load_best(checkpoints)
        trainer.save_model(output_dir)
    return TrainResult(Path(output_dir), trainer.best_step, trainer.final_metrics, trainer.best_metrics)
