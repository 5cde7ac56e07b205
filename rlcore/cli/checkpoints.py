"""Where a run keeps the checkpoints from which it goes on when it is interrupted."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged

DEFAULT_NAMES = ("auto", "true", "latest")
"""What resume_from_checkpoint says for the folder that a run uses by itself."""

# What would end the same way again, so that nobody goes on from there.
_FINAL = (ConfigError, DataError, CheckpointError, TrainingDiverged)


def checkpoints_of(params: LLMTrainingParams) -> Path | None:
    """The folder for the checkpoints of a run; None where it keeps none."""
    named = params.resume_from_checkpoint
    if params.save_strategy == "no":
        return None
    if named is None or named in DEFAULT_NAMES:
        return Path(f"{Path(params.project_name)}-checkpoints")
    return Path(named)


@contextmanager
def checkpoint_folder(params: LLMTrainingParams, *, is_first: bool = True) -> Iterator[Path | None]:
    """The folder for the checkpoints of a run, which may already hold some of it.

    A folder that was asked for stays. One that was not goes when the run is done, or ended in a way that it would end
    in again; it stays where the run was interrupted.

    Args:
        params: settings of the run.
        is_first: whether this is the process that writes, of those that were launched.

    Raises:
        ConfigError: there are checkpoints of an interrupted run, and nobody said to go on from them.
    """
    folder = checkpoints_of(params)
    if folder is None or params.resume_from_checkpoint is not None:
        yield folder
        return
    if is_first:
        _require_none(folder)
    try:
        yield folder
    except _FINAL:
        _remove(folder, is_first)
        raise
    _remove(folder, is_first)


def _require_none(folder: Path) -> None:
    if any(folder.glob("step-*")) or any(folder.glob("checkpoint-*")):
        raise ConfigError(
            f"{folder}: found the checkpoints of an interrupted run, expected none. Set resume_from_checkpoint=auto to "
            "go on from there, or remove the folder to start anew."
        )


def _remove(folder: Path, is_first: bool) -> None:
    if is_first and folder.exists():
        shutil.rmtree(folder)
