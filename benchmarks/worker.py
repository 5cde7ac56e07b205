"""The process of one arm: `python -m benchmarks.worker`, commanded over standard input, answering on standard output.

Runs under the peers' interpreters too: standard library only, until an arm is named.
"""

import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

from benchmarks.protocol import Arm, Measurement, line, message


class Memory:
    """Resident memory of this process in bytes, from /proc where there is one."""

    def __init__(self) -> None:
        self._highest = 0
        self.baseline = self.begin()
        self._highest = 0

    def now(self) -> int:
        """What is resident."""
        return _status("VmRSS:") or _highest_ever()

    def begin(self) -> int:
        """Forget the peak of the part before, once it is noted; returns what is resident."""
        self._highest = max(self._highest, self.peak())
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:  # without it a part's peak is that of the process so far
            pass
        return self.now()

    def peak(self) -> int:
        """Highest since `begin`."""
        return _status("VmHWM:") or _highest_ever()

    def highest(self) -> int:
        """Highest since the imports."""
        return max(self._highest, self.peak())


class Session:
    """The arm of this process."""

    def __init__(self) -> None:
        self.arm: Arm | None = None
        self.memory: Memory | None = None

    def build(self, arm: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Import `module:Name`, note the memory, make the arm."""
        module, _, name = arm.partition(":")
        started = time.process_time()
        maker = getattr(import_module(f"benchmarks.arms.{module}"), name)
        imported = time.process_time()
        self.memory = Memory()
        self.arm = maker(**settings)
        return {"import_s": imported - started, "build_s": time.process_time() - imported}

    def facts(self, other: dict[str, Any] | None) -> dict[str, Any]:
        """See Arm."""
        assert self.arm is not None
        return {"facts": self.arm.facts(other)}

    def unit(self) -> dict[str, Any]:
        """One unit, measured."""
        assert self.arm is not None
        assert self.memory is not None
        before = self.memory.begin()
        wall, cpu = time.perf_counter(), time.process_time()
        work = self.arm.unit()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Measurement(
            work,
            cpu_s=cpu,
            wall_s=wall,
            unit_peak_bytes=self.memory.peak() - before,
            peak_bytes=self.memory.highest() - self.memory.baseline,
        ).as_values()


def answer(session: Session, asked: dict[str, Any]) -> dict[str, Any]:
    """What a message asks for, done; a fault as one line with its trace on standard error."""
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "build": session.build,
        "facts": session.facts,
        "unit": session.unit,
    }
    do = asked.pop("do")
    try:
        return {"ok": True, **commands[do](**asked)}
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
        traceback.print_exc()
        return {"ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}


def serve(asking: BinaryIO, answering: BinaryIO) -> None:
    """Answer messages until there are no more."""
    session = Session()
    for text in asking:
        answering.write(line(answer(session, message(text))))
        answering.flush()


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((1024 * int(row.split()[1]) for row in file if row.startswith(name)), 0)
    except OSError:
        return 0


def _highest_ever() -> int:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else 1024 * kilobytes


def main() -> None:
    """Keep the pipe for answers: whatever else is printed goes to the log."""
    answering = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answering)


if __name__ == "__main__":
    main()
