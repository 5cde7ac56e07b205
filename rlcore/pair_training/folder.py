"""The one folder for the checkpoints of a run, whatever the number of processes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rlcore.checkpoint import require_replaceable
from rlcore.forward_backward import AsyncTrainingClient, in_first_process
from rlcore.run_folder import checkpoint_folder, only_run_in


@contextlib.contextmanager
def shared_checkpoint_folder(client: AsyncTrainingClient, resume_dir: Path | None, output_dir: Path) -> Iterator[Path]:
    """`checkpoint_folder` of the first process, for all of them, where output_dir may be replaced.

    Raises:
        ConfigError, CheckpointError: see require_replaceable and checkpoint_folder.
    """
    with contextlib.ExitStack() as cleanup:

        def enter() -> Path:
            require_replaceable(output_dir)
            return cleanup.enter_context(checkpoint_folder(resume_dir, output_dir))

        yield in_first_process(client, enter)


@contextlib.contextmanager
def only_run_of_folder(client: AsyncTrainingClient, folder: Path | None) -> Iterator[None]:
    """`only_run_in` of the first process; nothing where the run has no folder.

    Raises:
        CheckpointError: see only_run_in.
    """
    with contextlib.ExitStack() as cleanup:
        if folder is not None:
            in_first_process(client, lambda: cleanup.enter_context(only_run_in(folder)))
        yield
