"""Where a run keeps the checkpoints from which it goes on when it is interrupted."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.run_logs import KEY_FILE
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged

DEFAULT_NAMES = ("auto", "true", "latest")
"""What resume_from_checkpoint says for the folder that a run uses by itself."""

CHECKPOINTS = ("step-*", "checkpoint-*")
"""Names of checkpoints, of this library's trainers and of TRL's."""

# What ends the same way again without a change; with no checkpoint there is nothing to go on from.
_FINAL = (ConfigError, DataError, CheckpointError, TrainingDiverged)
# What a run that was killed before its first checkpoint leaves in the folder.
_BEGUN = (".lock", ".writable-*", ".step-*", "identity.*", f"{KEY_FILE}*")


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

    A folder that was asked for stays. One that was not goes when the run is done, or ended before its first checkpoint
    in a way that it would end in again; it stays where the run was interrupted.

    Args:
        params: settings of the run.
        is_first: whether this is the process that writes, of those that were launched.

    Raises:
        ConfigError: there are checkpoints of an interrupted run, and nobody said to go on from them; or files of
            another kind, which would go with the folder.
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
        if not _has(folder, CHECKPOINTS):
            _remove(folder, is_first)
        raise
    _remove(folder, is_first)


def _require_none(folder: Path) -> None:
    if _has(folder, CHECKPOINTS):
        raise ConfigError(
            f"{folder}: found the checkpoints of an interrupted run, expected none. Set resume_from_checkpoint=auto to "
            "go on from there, or remove the folder to start anew."
        )
    foreign = sorted({*folder.glob("*")} - {file for name in _BEGUN for file in folder.glob(name)})
    if foreign:
        raise ConfigError(
            f"{folder}: found {foreign[0].name}, expected nothing, as the checkpoints of a run go there and the folder "
            "goes with them. Move it away, or choose another project_name."
        )


def _has(folder: Path, names: Iterable[str]) -> bool:
    return any(any(folder.glob(name)) for name in names)


def _remove(folder: Path, is_first: bool) -> None:
    """Remove the folder, unless another run has begun there: then it is not this one's to remove."""
    # Loads torch, as does whoever has trained.
    from rlcore.run_folder import only_run_in

    if is_first and folder.exists():
        with suppress(CheckpointError), only_run_in(folder):
            shutil.rmtree(folder)
