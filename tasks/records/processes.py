"""Process groups that end as a whole, and a lock that one pipeline run of a checkout holds."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tasks.records.artifacts import read_json, write_json
from tasks.records.signals import raise_if_asked

POLL_SECONDS = 0.2
GRACE_SECONDS = 15.0
"""What a stage gets to clean up between SIGTERM and SIGKILL."""


def run_group(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    on_start: Callable[[int], None] = lambda group: None,
    while_running: Callable[[], None] = lambda: None,
) -> int:
    """Run a command in a process group of its own and return its exit status.

    However this call ends, by an exception of `while_running`, by a signal's or by a timeout's, no process of the group
    is left.

    Args:
        output: gets stdout and stderr.
        on_start: called once with the id of the group.
        while_running: called every fifth of a second.
    """
    process = subprocess.Popen(
        command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True,
    )  # fmt: skip
    try:
        on_start(process.pid)
        while process.poll() is None:
            raise_if_asked()
            while_running()
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    finally:
        end_group(process.pid)
        process.wait()
    return process.returncode


def end_group(group: int, grace: float = GRACE_SECONDS) -> None:
    """Ask every process of a group to end, wait, and kill what is left after `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not living(group):
            return
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline = time.monotonic() + grace
        while living(group) and time.monotonic() < deadline:
            time.sleep(0.05)


def living(group: int) -> list[int]:
    """Processes of a group that still run; a zombie does not."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, member_of = _stat(folder.name)[:3]
            if int(member_of) == group and state not in "ZX":
                members.append(int(folder.name))
    return members


def start_ticks(process: int) -> int | None:
    """When a process started, in clock ticks since boot: with its id it names a process once and for all."""
    try:
        return int(_stat(process)[19])
    except OSError:
        return None


def process_start() -> float:
    """When this process started, in seconds since 1970: its imports happen after that."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat("self")[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def remember_group(note: Path, group: int) -> None:
    """Note a process group in a file, for whoever has to end it if this process is killed outright."""
    owner = os.getpid()
    write_json(
        note,
        {"group": group, "start_ticks": start_ticks(group), "owner": owner, "owner_start_ticks": start_ticks(owner)},
    )


def end_remembered(note: Path) -> bool:
    """End the process group that a killed process left, and its note. A later process with its id is left alone.

    Returns:
        False where another process that still lives owns the group: nothing was done.
    """
    if not note.exists():
        return True
    left = read_json(note)
    owner = left.get("owner")
    if owner not in (None, os.getpid()) and start_ticks(owner) == left["owner_start_ticks"]:
        return False
    # A leader that is gone may have left children: their group keeps its id until they are gone too.
    if start_ticks(left["group"]) in (left["start_ticks"], None):
        end_group(left["group"])
    note.unlink(missing_ok=True)
    return True


@contextmanager
def held(path: Path, on_wait: Callable[[str], None] = lambda owner: None) -> Iterator[None]:
    """Hold a lock file, after waiting for it. The kernel frees it when its owner dies, however it dies.

    Args:
        path: of the lock file; it stays and holds a note about its last owner.
        on_wait: called once with words about the owner, when somebody else holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        waiting = False
        while not _try_lock(file):
            if not waiting:
                waiting = True
                on_wait(_owner(file))
            time.sleep(POLL_SECONDS)
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}, file)
        file.flush()
        yield


def _stat(process: int | str) -> list[str]:
    """What the kernel says of a process, from its state on; the name before it may hold blanks and brackets."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(file: IO[str]) -> str:
    file.seek(0)
    try:
        note = json.loads(file.read())
    except json.JSONDecodeError:
        return "another process"
    return f"process {note['pid']} on {note['host']} since {note['since']}"
