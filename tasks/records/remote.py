"""The DVC remote: what a pipeline run made is copied there before it is registered. A look at it comes first."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlcore.exit_codes import DONE
from tasks.records import versioning
from tasks.records.dvc_process import wait
from tasks.records.wording import first_line

PUSHED_TAG = "dvc.pushed"
"""Of a pipeline run and its version: whether the remote had everything when the version was registered."""

RETRY_DELAYS: tuple[float, ...] = (5.0, 30.0)
"""Seconds before the second and the third attempt."""

LIMIT_SECONDS = 3600.0
"""Of one attempt. What it copied stays, so a later one goes on."""

LOOK_SECONDS = 30.0
"""How long a look at a remote of another machine may take."""

_LOOK = """
import sys
from dvc.repo import Repo
try:
    with Repo(".") as repo:
        store = repo.cloud.get_remote_odb()
        store.fs.exists(store.path)
except Exception as error:
    sys.exit(str(error) or type(error).__name__)
"""
"""Asks the default remote of the working directory for its folder."""


class _TooSlow(Exception):
    """An attempt to push ran past its limit."""


def check_remote(root: Path, note: Callable[[str], None]) -> bool:
    """Whether the default remote would take what a run makes; True where there is none.

    Asked before the run, so that a missing key or a path that cannot be written shows at once and not hours later. The
    run goes on either way: what it makes stays in the cache.

    Args:
        root: the checkout.
        note: gets one line where it would not.
    """
    remote = versioning.default_remote(root)
    fault = None if remote is None else _fault(remote.url, root)
    if remote is not None and fault is not None:
        note(
            f"DVC remote {remote.name} ({remote.url}): {fault}. The run goes on and keeps what it makes here; mend the "
            "remote until it ends, or run `dvc push --run-cache` after it."
        )
    return fault is None


def _fault(url: str, root: Path) -> str | None:
    """What is wrong with a remote; None where nothing is."""
    if "://" in url:
        return _fault_elsewhere(root)
    folder = Path(url)
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _fault_elsewhere(root: Path) -> str | None:
    command = [sys.executable, "-c", _LOOK]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {LOOK_SECONDS:.0f} s"
    return None if done.returncode == DONE else first_line(done.stderr)


def push_all(root: Path, note: Callable[[str], None]) -> bool:
    """Copy to the default remote what it lacks; whether it has everything. Without a remote it has not.

    A remote that is away fails nothing: the training is done, and `dvc push --run-cache` can follow by hand as long as
    the workspace holds this run.

    Args:
        root: the checkout.
        note: gets a line about each attempt that failed.
    """
    for delay in (*RETRY_DELAYS, None):
        try:
            return versioning.push(root, environment=os.environ, while_running=_stopwatch(LIMIT_SECONDS))
        except (versioning.Transient, _TooSlow) as error:
            reason = str(error)
        if delay is not None:
            note(f"dvc push: {reason} Trying again in {delay:.0f} s.")
            wait(delay)
    note(f"dvc push: {reason} The version is registered all the same; run `dvc push --run-cache` before the next run.")
    return False


def _stopwatch(seconds: float) -> Callable[[], None]:
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise _TooSlow(f"it took more than {seconds:.0f} s.")

    return check
