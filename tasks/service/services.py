"""Long-lived processes of a checkout: Prefect's server, MLflow's server, a worker. They outlive who starts them.

Each is a process group of its own, noted in `.rlhf/services/<name>.json`, its output in `.rlhf/logs/<name>.log`. A
server that the environment names by its address is used, and none is started in its place.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.errors import DataError
from tasks.records import artifacts
from tasks.records.processes import end_remembered, held, living, start_ticks
from tasks.records.reachable import answers
from tasks.service.servers import (
    HOST,
    MLFLOW_HEALTH,
    MLFLOW_PORT,
    PREFECT_HEALTH,
    PREFECT_PORT,
    ServerFailed,
    filled,
    free_port,
    mlflow_arguments,
    prefect_arguments,
    start,
    until,
)

POOL = "rlhf"
"""Prefect's work pool whose runs the worker takes."""
RUNS_AT_ONCE = 4
"""Flow runs of one worker. Those that train wait for each other all the same: the checkout is held by one."""
LOG_LIMIT = 16 << 20
"""A longer log is begun anew when its service starts, in bytes."""
LITTLE_SPACE = 64 << 20
"""With less than that on the disk a server may end, in bytes."""
HUNG_SECONDS = 20.0
"""A service that lives and does not answer for so long is started again."""


@dataclass(frozen=True)
class Kind:
    """What is to know about a service before it runs.

    Attributes:
        name: of its note and its log.
        title: for people.
        port: where it listens unless somebody else does.
        health: path of its health page.
        arguments: of `python -m`, by port.
    """

    name: str
    title: str
    port: int
    health: str
    arguments: Callable[[int], list[str]]


def worker_name() -> str:
    """Name of this machine's worker in Prefect."""
    return f"{POOL}-{socket.gethostname()}"


def _worker_arguments(port: int) -> list[str]:
    return [
        "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", worker_name(),
        "--limit", str(RUNS_AT_ONCE), "--with-healthcheck",
    ]  # fmt: skip


PREFECT = Kind("prefect", "Prefect", PREFECT_PORT, PREFECT_HEALTH, prefect_arguments)
MLFLOW = Kind("mlflow", "MLflow", MLFLOW_PORT, MLFLOW_HEALTH, mlflow_arguments)
WORKER = Kind("worker", "the worker", 0, "/health", _worker_arguments)
KINDS = (WORKER, MLFLOW, PREFECT)
"""In the order in which they are ended."""


class Service:
    """One service of a checkout, running or not."""

    def __init__(self, kind: Kind, root: Path):
        self.kind = kind
        self.name = kind.name
        self.log = root / artifacts.LOGS / f"{kind.name}.log"
        self._root = root
        self._note = root / artifacts.STATE / "services" / f"{kind.name}.json"

    @property
    def url(self) -> str:
        """Where it listens; empty where it never ran."""
        port = self._noted().get("port")
        return f"http://{HOST}:{port}" if port else ""

    @property
    def process(self) -> int:
        """Id of its process and of its group; 0 where it does not run."""
        note = self._noted()
        group = int(note.get("group", 0))
        runs = group in living(group) and start_ticks(group) == note["start_ticks"]
        return group if runs else 0

    def is_up(self) -> bool:
        """Whether it runs and answers."""
        return bool(self.process) and answers(self.url + self.kind.health)

    def start(self, **settings: str) -> bool:
        """Start it if it does not run, hangs, or runs with other settings; whether it was started.

        Args:
            settings: environment variables beside those of this process; `{port}` in a value is filled in. A port that
                the service had is kept while it is free.
        """
        noted = self._noted()
        if self.process and noted["settings"] == settings and self._comes_back():
            return False
        end_remembered(self._note)
        port = free_port(noted.get("port", self.kind.port))
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.unlink()
        process = start(self.kind.arguments(port), self._root, self.log, {**os.environ, **filled(settings, port)})
        note = {"group": process.pid, "start_ticks": start_ticks(process.pid), "port": port, "settings": settings}
        artifacts.write_json(self._note, note)
        return True

    def wait(self) -> None:
        """Until it answers.

        Raises:
            ServerFailed: it ended, or too much time went by.
        """
        until(self.is_up, self.name, self.log, self.check)

    def check(self) -> None:
        """Raise ServerFailed if it does not run."""
        if not self.process:
            free = shutil.disk_usage(self._root).free
            full = f"The disk is full: {free >> 20} MiB are left. " if free < LITTLE_SPACE else ""
            raise ServerFailed(f"{self.name} ended by itself. {full}See {self.log}.")

    def stop(self) -> bool:
        """End it with all its processes; whether there was anything to end."""
        ran = bool(self.process)
        end_remembered(self._note)
        return ran

    def _comes_back(self) -> bool:
        deadline = time.monotonic() + HUNG_SECONDS
        while not self.is_up():
            if not self.process or time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def _noted(self) -> dict[str, Any]:
        try:
            return dict(artifacts.read_json(self._note))
        except DataError:
            return {}


def prefect_url(root: Path) -> str | None:
    """Address of Prefect's API: that of the environment, else that of `rlhf up` if it answers; None without."""
    if named := os.environ.get("PREFECT_API_URL"):
        return named
    server = Service(PREFECT, root)
    return f"{server.url}/api" if server.is_up() else None


@contextmanager
def services_held(root: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Nobody else starts or stops services of the checkout within the block."""
    with held(root / artifacts.STATE / "services.lock", on_wait):
        yield
