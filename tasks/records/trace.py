"""The trace of a stage: one JSON line for each report, appended while it runs, followed by whoever wants to know.

    {"step": 12, "time": 1764547200.5, "policy/loss": -0.013, "kl/ref_token_mean": 0.11}

`time` is in seconds since 1970. A number that is not finite becomes `"<name>_non_finite": 1`.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.results import TrainResult
from tasks.records.artifacts import read_rows, reports, write_rows

RESERVED = ("step", "time")
TOTAL_STEPS = "progress/total_steps"


class Trace:
    """Appends reports to a file. A resumed trainer repeats the steps after its checkpoint; each step is kept once.

    The first report after opening is the truth from its step on: what an earlier attempt wrote for that step and for
    later ones goes. A report of `progress/total_steps` alone says nothing about where training goes on.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        earlier = read_rows(path) if path.exists() else []
        self.last_step = max((int(row["step"]) for row in earlier), default=0)
        self._resumed = bool(earlier)
        self._total_steps = last_values(earlier).get(TOTAL_STEPS)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one report.

        Args:
            step: step of the trainer, from 0.
            metrics: name to number; anything that `float` takes.
        """
        if set(metrics) == {TOTAL_STEPS}:
            if metrics[TOTAL_STEPS] == self._total_steps:
                return
        elif self._resumed:
            self.cut_back(step)
        self._total_steps = metrics.get(TOTAL_STEPS, self._total_steps)
        self.last_step = max(self.last_step, int(step))
        _append(self.path, line(step, metrics))

    def cut_back(self, step: int) -> None:
        """Drop the reports of `step` and of later steps that an earlier attempt wrote."""
        self._resumed = False
        rows = read_rows(self.path) if self.path.exists() else []
        kept = [row for row in rows if row["step"] < step or _numbers(row).keys() == {TOTAL_STEPS}]
        self.last_step = max((int(row["step"]) for row in kept), default=0)
        if len(kept) < len(rows):
            write_rows(self.path, kept)

    def text(self) -> str:
        """All that was reported so far."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""


class SampleTrace:
    """Appends responses to a file, one line each with its step. Samples of a step replace earlier ones of that step."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        self._steps = {row["step"] for row in read_rows(path)} if path.exists() else set()

    def append(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Append the responses of one evaluation."""
        if step in self._steps:
            write_rows(self.path, [row for row in read_rows(self.path) if row["step"] != step])
        self._steps.add(step)
        for row in rows:
            _append(self.path, _json({"step": int(step), **row}))

    def cut_back(self, step: int) -> None:
        """Drop the responses of steps after `step`."""
        if any(known > step for known in self._steps):
            write_rows(self.path, [row for row in read_rows(self.path) if row["step"] <= step])
            self._steps = {known for known in self._steps if known <= step}

    def text(self) -> str:
        """All that was sampled so far."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""


class Reports:
    """What the attempts of a run report: trace and samples, which go on together from the same step after a resume.

    Attributes:
        trace, samples: below the folder.
    """

    def __init__(self, folder: Path):
        self.trace = Trace(reports(folder))
        self.samples = SampleTrace(folder / "samples.jsonl")
        self._first_report = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one report. The first one decides where training goes on; later samples of earlier attempts go."""
        if self._first_report and set(metrics) != {TOTAL_STEPS}:
            self._first_report = False
            self.samples.cut_back(step)
        self.trace.append(step, metrics)

    def log_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Keep the responses of one evaluation. A step reported twice is kept once."""
        self.samples.append(step, rows)


class TraceFollower:
    """Reads what was appended to a trace since the last look, also when it was cut back or replaced in between."""

    def __init__(self, path: Path):
        self.path = path
        self._inode = -1
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New rows, oldest first. After a cut the whole file counts as new, so readers must tolerate repetition."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                unread = file.read()
        except FileNotFoundError:
            return []
        whole = unread[: unread.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(text) for text in whole.split(b"\n") if text]


def end_of(result: TrainResult) -> dict[str, float]:
    """What a trainer's result adds to the end of its trace: the published step and the metrics there."""
    return {"best/step": result.best_step, **{f"best/{name}": value for name, value in result.best_metrics.items()}}


def line(step: int, metrics: Mapping[str, float]) -> str:
    """One report as it stands in a trace, with its line end."""
    return _json({"step": int(step), "time": time.time(), **finite(metrics)})


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as floats; one that is NaN or infinite is replaced by `<name>_non_finite` = 1."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {
        name if math.isfinite(value) else f"{name}_non_finite": value if math.isfinite(value) else 1.0
        for name, value in numbers.items()
    }


def last_values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The last value of each metric."""
    return {name: value for row in rows for name, value in _numbers(row).items()}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name not in RESERVED}


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _append(path: Path, text: str) -> None:
    # One unbuffered write per line, so that a kill leaves whole lines but for the last.
    with path.open("ab", buffering=0) as file:
        file.write(text.encode("utf-8"))


def _drop_torn_line(path: Path) -> None:
    """A killed process may leave half a line at the end."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
