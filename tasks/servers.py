"""Servers on this machine for as long as somebody needs them: Prefect's API, MLflow's UI."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from rlcore.errors import RLCoreError
from tasks.records import artifacts
from tasks.records.processes import end_group, end_remembered, remember_group
from tasks.records.reachable import answers
from tasks.records.stage import TRANSIENT

HOST = "127.0.0.1"
START_SECONDS = 300.0
"""How long a loaded machine may take to start a server."""


class ServerFailed(RLCoreError):
    """A server did not start, or does not answer."""

    exit_code = TRANSIENT


class Server:
    """A server process in a group of its own.

    Attributes:
        url: where it listens.
        log: what it printed.
    """

    def __init__(self, name: str, root: Path, arguments: list[str], port: int, health: str):
        self.name = name
        self.url = f"http://{HOST}:{port}"
        self.log = root / artifacts.LOGS / f"{name}.log"
        self._health = self.url + health
        state = root / artifacts.STATE
        self._note = state / f"{name}-{os.getpid()}.json"
        ended = [end_remembered(note) for note in state.glob(f"{name}-*.json")]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if all(ended):
            self.log.unlink(missing_ok=True)
        # Appended to, as the server of another process that lives may write to it too.
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        remember_group(self._note, self.process.pid)

    def wait(self) -> None:
        """Until it answers.

        Raises:
            ServerFailed: it ended, or START_SECONDS went by.
        """
        deadline = time.monotonic() + START_SECONDS
        while not answers(self._health):
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} did not answer within {START_SECONDS:.0f} s. See {self.log}.")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise ServerFailed if it ended by itself."""
        if self.process.poll() is not None:
            raise ServerFailed(f"{self.name} ended with exit status {self.process.returncode}. See {self.log}.")

    def stop(self) -> None:
        """End the server and what it started."""
        end_group(self.process.pid, grace=10.0)
        self.process.wait()
        self._note.unlink(missing_ok=True)


def prefect_server(root: Path) -> Server:
    """Prefect's API on the state of the environment, on a free port."""
    port = free_port()
    arguments = ["prefect", "server", "start", "--host", HOST, "--port", str(port), "--no-ui"]
    return Server("prefect-server", root, arguments, port, "/api/health")


def prefect_ui(root: Path) -> Server:
    """Prefect's UI on the state of the environment; on its usual port, or a free one where that is taken."""
    port = free_port(4200)
    arguments = ["prefect", "server", "start", "--host", HOST, "--port", str(port)]
    return Server("prefect-ui", root, arguments, port, "/api/health")


def mlflow_ui(root: Path) -> Server:
    """MLflow's UI on the tracking store of the environment; on its usual port, or a free one where that is taken."""
    port = free_port(5000)
    store = os.environ["MLFLOW_TRACKING_URI"]
    arguments = [
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        store,
    ]
    return Server("mlflow-ui", root, arguments, port, "/health")


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Stop the server at the end of the block, however it ends."""
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def needing(server: Server | None) -> Iterator[None]:
    """Within the block `check_needed` of this context looks after the server."""
    token = _NEEDED.set(server)
    try:
        yield
    finally:
        _NEEDED.reset(token)


def check_needed() -> None:
    """Raise ServerFailed if the server that this context needs ended by itself."""
    if (server := _NEEDED.get()) is not None:
        server.check()


def free_port(preferred: int = 0) -> int:
    """The preferred port of this machine, or another one where somebody uses it."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServerFailed(f"No port of {HOST} is free. Stop a server, and run again.")


_NEEDED: ContextVar[Server | None] = ContextVar("needed", default=None)
