"""Process groups that end as a whole, and lock files that end with their owner."""

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tasks.records.artifacts import read_json, write_json
from tasks.records.signals import raise_if_asked

POLL_SECONDS = 0.2
PEAK_MEMORY, PEAK_GPU_MEMORY = "memory/peak_gib", "memory/gpu_peak_gib"
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
    _end(lambda number: os.killpg(group, number), lambda: bool(living(group)), grace)


def end_process(process: int, grace: float = 2 * GRACE_SECONDS) -> None:
    """Ask a process to end, wait, and kill it after `grace` seconds, which it may need to end groups of its own."""
    started = start_ticks(process)
    # A later process with its id is left alone.
    _end(lambda number: os.kill(process, number), lambda: _runs(process) and start_ticks(process) == started, grace)


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


def peak_memory() -> dict[str, float]:
    """The most memory that this process had at once, and what PyTorch had of its GPU if it used one, in GiB."""
    # Linux counts in KiB.
    used = {PEAK_MEMORY: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        used[PEAK_GPU_MEMORY] = torch.cuda.max_memory_allocated() / 2**30
    return used


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
    with held_some([path], 1, on_wait):
        yield


@contextmanager
def held_some(
    paths: Sequence[Path], count: int, on_wait: Callable[[str], None] = lambda owner: None
) -> Iterator[list[Path]]:
    """Hold `count` of several lock files, all at once or none, after waiting for them; those that are held."""
    waiting = False
    while True:
        with ExitStack() as stack:
            files = {path: stack.enter_context(_opened(path)) for path in paths}
            free = {path: file for path, file in files.items() if _try_lock(file)}
            if len(free) >= count:
                kept = dict(list(free.items())[:count])
                for path, file in files.items():
                    _sign(file) if path in kept else file.close()
                yield list(kept)
                return
            if not waiting:
                waiting = True
                on_wait(_owner(next(file for path, file in files.items() if path not in free)))
        raise_if_asked()
        time.sleep(POLL_SECONDS)


def owner_process(path: Path) -> int | None:
    """Id of the process that holds a lock file; None where nobody does."""
    if not path.exists():
        return None
    with _opened(path) as file:
        if _try_lock(file):
            return None
        file.seek(0)
        try:
            return int(json.loads(file.read())["pid"])
        except json.JSONDecodeError:
            return None


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+", encoding="utf-8")


def _sign(file: IO[str]) -> None:
    file.seek(0)
    file.truncate()
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}, file)
    file.flush()


def _end(send: Callable[[int], None], runs: Callable[[], bool], grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not runs():
            return
        with suppress(ProcessLookupError):
            send(number)
        deadline = time.monotonic() + grace
        while runs() and time.monotonic() < deadline:
            time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        return _stat(process)[0] not in "ZX"
    except OSError:
        return False


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
