"""Running generated code against tests, for those who ask for it: no environment executes anything by itself.

The code runs in a process of its own with an empty environment, a folder of its own, limits on memory, CPU, files and
processes, and an audit hook that refuses network, further processes and files elsewhere. That stops accidents and the
usual attacks; it is no sandbox against code that breaks the interpreter. Where such code must be expected, run the
whole training in a container without network. A program that sets out to fake its own tests can do so, as everywhere
where code and tests share a process.
"""

import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from rlcore.environments.code_text import code_in
from rlcore.environments.multi_objective import RewardComponent
from rlcore.errors import ConfigError, DataError, RLCoreError

RUNNER = Path(__file__).with_name("code_runner.py")
MIN_MEMORY_BYTES = 1 << 26
MAX_RESULT_BYTES = 1 << 20

Status = Literal["passed", "failed", "timeout", "memory", "crashed"]


@dataclass(frozen=True)
class CodeResult:
    """What became of code and its tests.

    Attributes:
        status: `passed`: every test passed. `failed`: the code or a test raised. `timeout`, `memory`: a limit was hit.
            `crashed`: the process ended before the last test did.
        passed: tests that passed; 0 where the code itself raised.
        total: tests there are.
        errors: first line of what was raised, in the order of the tests.
    """

    status: Status
    passed: int
    total: int
    errors: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """Share of the tests that passed."""
        return self.passed / self.total


def run_code_against_tests(
    code: str, tests: Sequence[str], *, timeout_s: float = 5.0, memory_bytes: int = 1 << 28
) -> CodeResult:
    """Run code once, then each test in a copy of its namespace. Blocks for timeout_s at most; works in any thread.

    The code sees the standard library only. Its threads and child processes end with it.

    Args:
        code: a Python module.
        tests: Python statements that raise where the code is wrong, such as `assert add(1, 2) == 3`.
        timeout_s: wall time of code and tests together, start of the interpreter included, in seconds.
        memory_bytes: address space of the process.

    Raises:
        ConfigError: there is no test, or a limit is too small.
        RLCoreError: the process could not be started. Nothing is run elsewhere instead.
    """
    if isinstance(tests, str) or not tests:
        raise ConfigError(f"tests: found {tests!r}, expected a list with at least one test.")
    if not 0 < timeout_s < math.inf or memory_bytes < MIN_MEMORY_BYTES:
        raise ConfigError(
            f"timeout_s={timeout_s}, memory_bytes={memory_bytes}: expected seconds above 0 and at least "
            f"{MIN_MEMORY_BYTES} bytes, which the interpreter needs."
        )
    job = {
        "code": code,
        "tests": list(tests),
        "secret": secrets.token_hex(16),
        "memory_bytes": memory_bytes,
        "cpu_seconds": math.ceil(timeout_s) + 1,
    }
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as job_file,
        tempfile.TemporaryFile() as result_file,
    ):
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        timed_out = _run(folder, job_file, result_file, timeout_s)
        result_file.seek(0)
        records = _records(result_file.read(MAX_RESULT_BYTES), job["secret"])
    return _result(records, len(tests), timed_out)


def passed_tests(
    tests: Mapping[str, Sequence[str]], *, timeout_s: float = 5.0, memory_bytes: int = 1 << 28
) -> RewardComponent:
    """A component for MultiObjectiveRewardEnv that RUNS the generated code: the share of the prompt's tests that pass.

    Args:
        tests: tests by prompt.
        timeout_s, memory_bytes: limits of each response; see run_code_against_tests.

    Raises:
        ConfigError: see run_code_against_tests. The component raises DataError for a prompt without tests.
    """

    def component(prompt: str, generated: str, full_text: str) -> float:
        if prompt not in tests:
            raise DataError(f"Found no tests for the prompt {prompt[:60]!r}. Add them, or drop the prompt.")
        return run_code_against_tests(
            code_in(generated), tests[prompt], timeout_s=timeout_s, memory_bytes=memory_bytes
        ).score

    return component


def _run(folder: str, job_file: IO[bytes], result_file: IO[bytes], timeout_s: float) -> bool:
    """Run the job and end everything that came of it; whether time ran out."""
    try:
        # -I: no PYTHON variables, no user site; -S: no installed packages. No preexec_fn, which is unsafe with threads.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUNNER)],
            stdin=job_file,
            stdout=result_file,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "PATH": os.defpath, "LANG": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        raise RLCoreError(f"Could not start {sys.executable} to run code: {error}. Nothing was run.") from error
    try:
        return not _ends_within(process.pid, timeout_s)
    finally:
        # Before the process is reaped: until then no other can take over its group's number.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ends_within(process_id: int, timeout_s: float) -> bool:
    """Wait for the end of a child process and leave it to be reaped."""
    exit_watch = os.pidfd_open(process_id)
    try:
        poll = select.poll()
        poll.register(exit_watch, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(exit_watch)


def _records(written: bytes, secret: object) -> list[dict[str, object]]:
    records = []
    for line in written.splitlines():
        try:
            record = json.loads(line)
        # Only code that got at the secret can write lines that fail here; they are no results.
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and record.get("secret") == secret:
            records.append(record)
    return records


def _result(records: list[dict[str, object]], total: int, timed_out: bool) -> CodeResult:
    if not records and not timed_out:
        raise RLCoreError(
            f"{RUNNER.name} did not start under {sys.executable}. Nothing was run; check the interpreter."
        )
    tests = range(total)
    errors = [str(record["error"]) for record in records if record.get("error")]
    passed = len({record["test"] for record in records if record.get("test") in tests and record.get("error") is None})
    finished = any("finished" in record for record in records)
    status: Status = "failed"
    if timed_out:
        status = "timeout"
    elif "MemoryError" in errors:
        status = "memory"
    elif not finished:
        status = "crashed"
    elif passed == total:
        status = "passed"
    return CodeResult(status, passed, total, tuple(errors))
