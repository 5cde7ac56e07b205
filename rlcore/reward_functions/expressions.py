r"""Whether two expressions in LaTeX mean the same, by math-verify: \frac{\sqrt3}{3} and 1/\sqrt{3}, sets, intervals.

Its answer comes from a process of its own with limits on processor time and memory, because a short text can keep a
computer busy for ever (9^{9^{9}}) and only a process can be ended, whichever thread asks. The process starts with the
first question, at the cost of a second, and ends with this one.
"""

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, cast

from rlcore.errors import RLCoreError

WORKER = Path(__file__).with_name("expression_worker.py")
MAX_CHARACTERS = 300
"""Longer texts are no answers; what they say is not compared."""

_COMMAND = re.compile(r"\\(?:begin|end) ?\{[a-z]+\}|\\[A-Za-z]+")
_WORD = re.compile(r"(?!(?:sin|cos|tan|cot|sec|csc|log|exp|gcd|lcm|min|max|arcsin|arccos|arctan)\b)[A-Za-z]{3,}")
# Bases of numerals, times and ratios, of which math-verify reads the first as nothing and the others as fractions.
_NUMERAL_OR_TIME = re.compile(r"[0-9]\}? ?_|[0-9] ?: ?[0-9]")
_AND = re.compile(r",? ?\b(?:and|or)\b")


@lru_cache(maxsize=4096)
def same_expression(found: str, gold: str) -> bool:
    """Whether two texts in mathematical mode are equal: as numbers and terms, equations, sets, intervals or matrices.

    Lists without brackets, also with "and" or "or", are sets. Approximations are not equal. Texts with words, numerals
    with a base, times and ratios are equal to nothing here: they have to be compared by their spelling. So is what
    cannot be read, or takes more than two seconds of processor time or a gigabyte.

    Raises:
        RLCoreError: math-verify could not be started.
    """
    pair = [_AND.sub(",", text).replace("$", "") for text in (gold, found)]
    if not all(_is_expression(text) for text in pair):
        return False
    return _worker(os.getpid()).equal(*pair)


def _is_expression(text: str) -> bool:
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return False
    return not (_WORD.search(_COMMAND.sub(" ", text)) or _NUMERAL_OR_TIME.search(text))


@cache
def _worker(process_id: int) -> "_Worker":
    """The worker of this process. A fork gets its own, or two would read each other's answers."""
    return _Worker()


class _Worker:
    """A process that compares one pair at a time; a new one after one that had to end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, found: str) -> bool:
        with self._lock:
            process = self._running()
            try:
                _write_line(process, json.dumps([gold, found]))
                answer = cast(IO[str], process.stdout).readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                self._stop()
            return answer.strip() == "true"

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        return self._start()

    def _start(self) -> subprocess.Popen[str]:
        # -P: the files beside the worker are no modules of its own.
        process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._process = process
        atexit.register(self._stop)
        if cast(IO[str], process.stdout).readline().strip() != "ready":
            self._stop()
            raise RLCoreError(
                f"{WORKER.name} did not start under {sys.executable}. Install math-verify, which compares expressions."
            )
        return process

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _write_line(process: subprocess.Popen[str], line: str) -> None:
    stream = cast(IO[str], process.stdin)
    stream.write(line + "\n")
    stream.flush()
