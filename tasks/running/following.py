"""What a running stage reports, shown and logged while it runs."""

import logging
import time
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from tasks.records import artifacts
from tasks.records.trace import TraceFollower
from tasks.records.tracking import RunLog
from tasks.records.wording import first_line
from tasks.running.progress import Checklist
from tasks.service.servers import check_needed

FLUSH_SECONDS = 2.0
"""Time between two batches of metrics of a running stage."""

logger = logging.getLogger(__name__)


class Batches:
    """Rows of a trace on their way to MLflow, sent every few seconds.

    A server that is away does not stop training: the rows wait for it, and stay in the trace besides.
    """

    def __init__(self, log: RunLog):
        self._log = log
        self._waiting: list[dict[str, Any]] = []
        self._sent = time.monotonic()

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Take rows in, and send what waits if it is time."""
        self._waiting += rows
        if time.monotonic() - self._sent >= FLUSH_SECONDS:
            self.send()

    def send(self) -> None:
        """Log what waits."""
        self._sent = time.monotonic()
        try:
            self._log.rows(self._waiting)
            self._waiting = []
        except (MlflowException, SQLAlchemyError) as error:
            logger.warning("MLflow takes no metrics for now: %s", first_line(str(error)))


class StageFollower:
    """Shows and logs what a stage process reports, while it runs. At the end of its block it logs what is left."""

    def __init__(self, root: Path, stage: str, log: RunLog, watcher: Checklist):
        self._root = root
        self._stage = stage
        self._watcher = watcher
        self._trace: TraceFollower | None = None
        self._batches = Batches(log)

    def __enter__(self) -> "StageFollower":
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.send()

    def look(self) -> None:
        """Take in what was reported since the last look.

        Raises:
            ServerFailed: Prefect's temporary server ended.
        """
        check_needed()
        if self._trace is None:
            running = self._root / artifacts.running_file(self._stage)
            if not running.exists():
                return
            folder = running.parent / artifacts.read_json(running)["key"]
            self._trace = TraceFollower(artifacts.reports(folder))
        rows = self._trace.read()
        self._watcher.report(self._stage, rows)
        self._batches.add(rows)
