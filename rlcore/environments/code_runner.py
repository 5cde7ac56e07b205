"""Runs code and its tests in this process, with everything taken away that a program may not use.

Not to be imported: `code_execution` starts this file by its path as a process of its own. The job comes as JSON on
standard input, results leave as JSON lines on standard output, each with the secret of the job, so that nothing the
code itself prints counts as a result.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

MAX_FILE_BYTES, MAX_OPEN_FILES, MAX_ERROR_CHARACTERS = 1 << 24, 32, 300

# Refused by the interpreter itself wherever they are called from.
REFUSED_EVENTS = (
    "ctypes.",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "signal.pthread_kill",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostby",
    "socket.sendto",
    "subprocess.",
)
PATH_EVENTS = (
    "open",
    "os.chdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "os.symlink",
    "os.truncate",
    "os.utime",
)


def main() -> None:
    """Run the job on standard input."""
    job = json.load(sys.stdin.buffer)
    report = _reporter(job["secret"])
    _limit(job["memory_bytes"], job["cpu_seconds"])
    sys.addaudithook(_guard(os.getcwd()))
    report(started=True)
    namespace: dict[str, Any] = {"__name__": "solution", "__builtins__": __builtins__}
    error = _attempt(job["code"], namespace)
    if error is not None:
        report(error=error)
    else:
        for index, test in enumerate(job["tests"]):
            report(test=index, error=_attempt(test, dict(namespace)))
    report(finished=True)
    # Threads that the code left behind must not keep the process alive.
    os._exit(0)


def _attempt(source: str, namespace: dict[str, Any]) -> str | None:
    """Execute; what went wrong in one line, None if nothing did."""
    try:
        exec(compile(source, "<solution>", "exec"), namespace)
    except MemoryError:
        # The report needs memory too.
        namespace.clear()
        return "MemoryError"
    # Whatever the code raises is its result, SystemExit and KeyboardInterrupt among it.
    except BaseException as error:  # noqa: BLE001
        lines = traceback.format_exception_only(type(error), error)
        return (lines[-1].strip() or type(error).__name__)[:MAX_ERROR_CHARACTERS]
    return None


def _reporter(secret: str) -> Callable[..., None]:
    """Writes results to what was standard output; the three standard streams lead nowhere from here on."""
    results = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)

    def report(**result: object) -> None:
        os.write(results, (json.dumps({"secret": secret, **result}) + "\n").encode())

    return report


def _limit(memory_bytes: int, cpu_seconds: int) -> None:
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_CORE: 0,
        # No further process or thread; the kernel exempts root, whom the guard stops.
        resource.RLIMIT_NPROC: 0,
    }
    for kind, limit in limits.items():
        highest = resource.getrlimit(kind)[1]
        lowered = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
        resource.setrlimit(kind, (lowered, lowered))


def _guard(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that keeps reads to the folder and the interpreter's own files, and writes to the folder."""
    inside = os.path.realpath(folder)
    library = tuple({os.path.realpath(path) for path in (sys.base_prefix, os.path.dirname(os.__file__))})
    writing = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

    def within(path: Any, roots: tuple[str, ...]) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return any(real == root or real.startswith(root + os.sep) for root in roots)

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED_EVENTS):
            raise PermissionError(f"{event} is refused")
        if event not in PATH_EVENTS:
            return
        reads = event in ("os.listdir", "os.scandir") or (event == "open" and not (arguments[2] or 0) & writing)
        roots = (inside, *library) if reads else (inside,)
        for path in arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]:
            if isinstance(path, (str, bytes, os.PathLike)) and not within(path, roots):
                raise PermissionError(f"{event} outside of the folder is refused")

    return guard


if __name__ == "__main__":
    main()
