"""Where the numbers of a run are kept: nowhere, or where an entry point of the group `rlhf.metric_sinks` keeps them."""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from rlcore.errors import ConfigError
from rlcore.results import MetricSink, SampleSink, TrainResult, ignore_metrics, ignore_samples

GROUP = "rlhf.metric_sinks"
KEY_FILE = "run.key"

_KEY = re.compile(r"[0-9a-f]{32}")


class RunLog(Protocol):
    """Keeps the numbers of one run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """`on_metrics` of the trainer. A run that is taken up repeats the steps after its checkpoint."""

    def log_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """`on_samples` of the trainer."""

    def finish(self, result: TrainResult) -> str | None:
        """The run is done and its model written. Called last, within the context; a line about where it is seen."""


OpenLog = Callable[[str, str, Mapping[str, Any]], AbstractContextManager[RunLog]]
"""What an entry point is: `open(key, name, settings)`.

`key` is the same for all attempts of a run that is interrupted and taken up, `name` is for people to read, `settings`
are nested and plain JSON. What the log needs is checked by the call, before anything is written. An exception that
leaves the context ends the run as failed or cancelled.
"""


class NoLog:
    """Keeps nothing."""

    log: MetricSink = staticmethod(ignore_metrics)
    log_samples: SampleSink = staticmethod(ignore_samples)

    def finish(self, result: TrainResult) -> None:
        """Nothing is left to do or to see."""


@contextmanager
def run_log(kind: str, name: str, settings: Mapping[str, Any], checkpoints: Path | None) -> Iterator[RunLog]:
    """The log of a run.

    Args:
        kind: "none", or the name of an entry point.
        name: of the run.
        settings: of the run.
        checkpoints: its folder for checkpoints, which also tells which run is taken up; None where it keeps none.

    Raises:
        ConfigError: there is no such entry point, or it needs a checkout.
    """
    if kind == "none":
        yield NoLog()
        return
    file = None if checkpoints is None else checkpoints / KEY_FILE
    key = _key_in(file) or uuid.uuid4().hex
    opened = open_log(kind)(key, name, settings)
    if file is not None:
        # The next attempt finds it there, however this one ends.
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{KEY_FILE}.tmp")
        draft.write_text(key, encoding="utf-8")
        draft.replace(file)
    with opened as log:
        yield log


def _key_in(file: Path | None) -> str | None:
    """The key of the run that is taken up; None where there is none, or something else. Logs name folders after it."""
    if file is None or not file.is_file():
        return None
    key = file.read_text(encoding="utf-8", errors="replace")
    return key if _KEY.fullmatch(key) else None


def open_log(kind: str) -> OpenLog:
    """The entry point of that name.

    Raises:
        ConfigError: there is none, or its module is not installed.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            try:
                return cast(OpenLog, entry.load())
            except ModuleNotFoundError as error:
                raise _needs_checkout(kind, f"module {error.name!r}") from error
    raise _needs_checkout(kind, f"entry point of that name in {GROUP}")


def _needs_checkout(kind: str, missing: str) -> ConfigError:
    return ConfigError(
        f"log={kind!r} needs a checkout: found no {missing}. Clone the project and run `make demo` there, or leave it "
        "out."
    )
