"""What several processes do together around a run: one folder, one writer, rows in their order again."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rlcore.forward_backward import AsyncTrainingClient
from rlcore.run_folder import checkpoint_folder

T = TypeVar("T")
R = TypeVar("R")


def on_first(client: AsyncTrainingClient, work: Callable[[], R]) -> R:
    """Do work that reads or writes files in the first process alone; all get its result, or its error."""
    return client.across_processes(lambda processes: processes.on_first(work)).result()


def mapped(client: AsyncTrainingClient, rows: Sequence[T], fn: Callable[[list[T]], Sequence[R]]) -> list[R]:
    """`fn(rows)`, one result for each row: each process does its share, all get all results, in the rows' order."""
    own = list(fn(client.processes.share(rows)))
    parts: list[list[R]] = client.across_processes(lambda processes: processes.gather(own)).result()
    return [parts[row % len(parts)][row // len(parts)] for row in range(len(rows))]


@contextlib.contextmanager
def shared_checkpoint_folder(client: AsyncTrainingClient, resume_dir: Path | None, output_dir: Path) -> Iterator[Path]:
    """`checkpoint_folder` of the first process, for all of them."""
    with contextlib.ExitStack() as cleanup:
        yield on_first(client, lambda: cleanup.enter_context(checkpoint_folder(resume_dir, output_dir)))
