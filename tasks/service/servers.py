"""Servers on this machine for as long as somebody needs them: Prefect's API, MLflow's UI."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from rlcore.errors import RLCoreError
from rlcore.exit_codes import TRANSIENT
from tasks.records import artifacts
from tasks.records.processes import end_group, end_remembered, remember_group
from tasks.records.reachable import answers

HOST = "127.0.0.1"
PREFECT_PORT, MLFLOW_PORT, CHAT_PORT = 4200, 5000, 5001
PREFECT_HEALTH, MLFLOW_HEALTH = "/api/health", "/health"
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

    def __init__(
        self,
        name: str,
        root: Path,
        arguments: list[str],
        port: int,
        health: str,
        settings: Mapping[str, str] = MappingProxyType({}),
    ):
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
        self.process = start(arguments, root, self.log, {**os.environ, **filled(settings, port)})
        remember_group(self._note, self.process.pid)

    def wait(self) -> None:
        """Until it answers.

        Raises:
            ServerFailed: it ended, or START_SECONDS went by.
        """
        until(lambda: answers(self._health), self.name, self.log, self.check)

    def check(self) -> None:
        """Raise ServerFailed if it ended by itself."""
        if self.process.poll() is not None:
            raise ServerFailed(f"{self.name} ended with exit status {self.process.returncode}. See {self.log}.")

    def stop(self) -> None:
        """End the server and what it started."""
        end_group(self.process.pid, grace=10.0)
        self.process.wait()
        self._note.unlink(missing_ok=True)


def start(
    arguments: Sequence[str], root: Path, log: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start `python -m <arguments>` in the checkout, in a process group of its own, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip


def until(ready: Callable[[], bool], name: str, log: Path, check: Callable[[], None]) -> None:
    """Wait until something is ready.

    Args:
        ready: asked ten times a second.
        name: of what is waited for.
        log: where it writes.
        check: raises if it never will be.

    Raises:
        ServerFailed: START_SECONDS went by.
    """
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise ServerFailed(f"{name} did not answer within {START_SECONDS:.0f} s. See {log}.")
        time.sleep(0.1)


def prefect_server(root: Path) -> Server:
    """Prefect's API on the state of the environment, on a free port."""
    port = free_port()
    return Server("prefect-server", root, [*prefect_arguments(port), "--no-ui"], port, PREFECT_HEALTH)


def prefect_ui(root: Path) -> Server:
    """Prefect's UI on the state of the environment; on its usual port, or a free one where that is taken."""
    port = free_port(PREFECT_PORT)
    return Server("prefect-ui", root, prefect_arguments(port), port, PREFECT_HEALTH, page_settings())


def mlflow_ui(root: Path) -> Server:
    """MLflow's UI on the tracking store of the environment; on its usual port, or a free one where that is taken."""
    port = free_port(MLFLOW_PORT)
    return Server("mlflow-ui", root, mlflow_arguments(port), port, MLFLOW_HEALTH)


def prefect_arguments(port: int) -> list[str]:
    """Starts Prefect's API and UI."""
    return ["prefect", "server", "start", "--host", HOST, "--port", str(port)]


def page_settings() -> dict[str, str]:
    """Environment by which Prefect's pages ask their own server, and not whoever has Prefect's usual port.

    `{port}` in a value is to be filled in. An address that the environment names, as behind a proxy, is left.
    """
    named = {"PREFECT_SERVER_UI_API_URL", "PREFECT_UI_API_URL"} & os.environ.keys()
    return {} if named else {"PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{{port}}/api"}


def filled(settings: Mapping[str, str], port: int) -> dict[str, str]:
    """Settings with the port in place of `{port}`."""
    return {name: value.format(port=port) for name, value in settings.items()}


def mlflow_arguments(port: int) -> list[str]:
    """Starts MLflow on the tracking store of the environment."""
    store = os.environ["MLFLOW_TRACKING_URI"]
    return ["mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1", "--backend-store-uri", store]


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


def has_temporary_server() -> bool:
    """Whether the Prefect server of this context ends with it, so that nobody else can know what it knows."""
    return _NEEDED.get() is not None


def free_port(preferred: int = 0) -> int:
    """The preferred port of this machine, or another one where somebody uses it."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # A port that a killed server left is free, though the kernel still remembers its connections.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServerFailed(f"No port of {HOST} is free. Stop a server, and run again.")


_NEEDED: ContextVar[Server | None] = ContextVar("needed", default=None)
