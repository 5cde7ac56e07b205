"""DVC as a process: in a group that never outlives its run for long, and patient with other DVC commands."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from rlcore.exit_codes import DONE
from tasks.records import artifacts
from tasks.records.processes import POLL_SECONDS, end_remembered, remember_group, run_group
from tasks.records.signals import raise_if_asked

LOCK_PAUSES: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between attempts while another DVC command works in the checkout, which DVC itself does not wait for."""

_LOCKED = re.compile(r"Unable to acquire lock| is busy")
_LEFTOVER = artifacts.STATE / "running-group.json"


def run_dvc(
    arguments: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    while_running: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Run a DVC command to its end. Another one that works in the checkout is waited for, but not for ever.

    However this call ends, no process of the command is left; one that a killed run left is ended by `end_leftover`.

    Args:
        arguments: of `dvc`.
        root: the checkout.
        environment: of the process.
        output: a file that gets what it prints.
        while_running: called every fifth of a second, also while waiting.

    Returns:
        Its exit status, and what the last attempt printed.
    """
    for pause in (*LOCK_PAUSES, None):
        begin = output.tell()
        status = _attempt(arguments, root, environment, output, while_running)
        said = Path(output.name).read_bytes()[begin:].decode("utf-8", errors="replace")
        if status == DONE or pause is None or not _LOCKED.search(said):
            break
        wait(pause, while_running)
    return status, said


def end_leftover(root: Path) -> None:
    """End the command that a killed run left running; nothing where its run lives."""
    end_remembered(root / _LEFTOVER)


def wait(seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let time pass, but not for long after a signal.

    Args:
        seconds: how long.
        meanwhile: called every fifth of a second.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        raise_if_asked()
        meanwhile()
        time.sleep(POLL_SECONDS)


def _attempt(
    arguments: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    while_running: Callable[[], None],
) -> int:
    try:
        return run_group(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=root,
            environment=_environment(environment),
            output=output,
            on_start=lambda group: remember_group(root / _LEFTOVER, group),
            while_running=while_running,
        )
    finally:
        (root / _LEFTOVER).unlink(missing_ok=True)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`cmd: python ...` in `dvc.yaml` must find the interpreter that runs the pipeline."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    return {**environment, "PATH": path, "PYTHONUNBUFFERED": "1"}
