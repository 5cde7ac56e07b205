"""The DVC remote: what a pipeline run made is copied there before it is registered."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tasks.records import versioning
from tasks.records.signals import raise_if_asked

PUSHED_TAG = "dvc.pushed"
"""Of a pipeline run and its version: whether the remote had everything when the version was registered."""

RETRY_DELAYS: tuple[float, ...] = (5.0, 30.0)
"""Seconds before the second and the third attempt."""

LIMIT_SECONDS = 3600.0
"""Of one attempt. What it copied stays, so a later one goes on."""


class _TooSlow(Exception):
    """An attempt to push ran past its limit."""


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
            _sleep(delay)
    note(f"dvc push: {reason} The version is registered all the same; run `dvc push --run-cache` before the next run.")
    return False


def _stopwatch(seconds: float) -> Callable[[], None]:
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise _TooSlow(f"it took more than {seconds:.0f} s.")

    return check


def _sleep(seconds: float) -> None:
    """Wait, but not for long after a signal."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        raise_if_asked()
        time.sleep(0.2)
