"""What a pipeline run takes beside its stages: `rlhf pipeline run` in a fresh checkout, then again with all cached."""

import datetime
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import HOME, ROOT
from benchmarks.results import BELOW, NOT_SHOWN, REACHED, Result
from benchmarks.validity import load

CACHED_RUNS = 3

SHORT = (
    "demo_data.demonstrations=400",
    "demo_data.preference_pairs=400",
    "demo_data.held_out_pairs=100",
    "sft.max_steps=20",
    "reward.num_epochs=1",
    "reward.reference_samples=16",
    "ppo.num_iterations=2",
    "ppo.batch_size=8",
    "ppo.mini_batch_size=8",
    "practices.silence=[ppo_learning_rate, reward_model_accuracy]",
)
"""Stages that train for seconds: what a run takes beside them does not depend on how long they train."""

DRIVER = """
import json, sys
from pathlib import Path
from rich.table import Table
from tasks.commands.pipeline import PIPELINE
from tasks.commands.running import checked_settings, run_flow, watched
from tasks.running.progress import STEPS

sets = sys.argv[2:]
root, params = checked_settings(None, sets)

def run(checklist):
    summary = run_flow(root, checklist, PIPELINE, params_file=params, sets=sets, force=[])
    Path(sys.argv[1]).write_text(json.dumps({name: summary[name] for name in ("seconds", "stage_seconds")}))
    return Table()

sys.exit(watched(run, STEPS))
"""
"""`rlhf pipeline run`, with its summary as JSON; `seconds` counts from the start of its process."""


@dataclass(frozen=True)
class Run:
    """One pipeline run, in wall seconds."""

    seconds: float
    stage_seconds: float
    load: float

    @property
    def overhead(self) -> float:
        """What is not a stage."""
        return self.seconds - self.stage_seconds


@dataclass(frozen=True)
class Overhead:
    """A row in seconds: at most must.

    Args:
        name: "pipeline-first" or "pipeline-cached".
        title, must, aim: of the row.
    """

    name: str
    title: str
    must: float
    aim: str

    def measure(self, rounds: int, *, smoke: bool = False) -> Result:
        """The row, measured. Wall seconds count here: the load is shown beside them."""
        named: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "must": f"at most {self.must:g} s",
            "must_value": self.must,
            "aim": self.aim,
            "smoke": smoke,
            "note": "Wall seconds of `rlhf pipeline run` less those of the stages' processes.",
            "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        outcome = _runs(1 if smoke else CACHED_RUNS)
        if isinstance(outcome, str):
            return Result(**named, status=NOT_SHOWN, reason=outcome)
        runs = outcome[:1] if self.name == "pipeline-first" else outcome[1:]
        return Result(**named, **_judged(runs, self.must))


def _judged(runs: Sequence[Run], must: float) -> dict[str, Any]:
    overheads, loads = [run.overhead for run in runs], [run.load for run in runs]
    median, cores = statistics.median(overheads), os.cpu_count() or 1
    quiet = max(loads) <= cores
    return {
        "status": NOT_SHOWN if not quiet else REACHED if median <= must else BELOW,
        "reason": "" if quiet else f"invalid: load {max(loads):.1f} on {cores} cores",
        "value": f"{median:.0f} s [{min(overheads):.0f}, {max(overheads):.0f}]",
        "median": median,
        "least": min(overheads),
        "most": max(overheads),
        "load": f"{min(loads):.1f} to {max(loads):.1f}",
        "work": f"stages {statistics.median(run.stage_seconds for run in runs):.0f} s",
        "rounds": [{"seconds": run.seconds, "stage_seconds": run.stage_seconds, "load": run.load} for run in runs],
    }


class _RunFailed(Exception):
    """A pipeline run did not end well. One line."""


@functools.cache
def _runs(cached: int) -> list[Run] | str:
    """A first run and so many that find everything done, for both rows; or why there are none."""
    try:
        with _checkout() as root:
            return [_run(root) for _ in range(1 + cached)]
    except _RunFailed as error:
        return str(error)


def _run(root: Path) -> Run:
    before, log, summary = load(), HOME / "logs" / "pipeline.log", root.parent / "summary.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "DVC_"))}
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(summary), *SHORT],
            cwd=root,
            env={**kept, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise _RunFailed(f"the pipeline run ended with {done.returncode}. See {log.relative_to(ROOT)}.")
    return Run(**json.loads(summary.read_text(encoding="utf-8")), load=before)


@contextmanager
def _checkout() -> Iterator[Path]:
    """A checkout of the working tree of its own, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder) / "checkout"
        listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        _git(root, "init", "--quiet")
        _git(root, "add", "--all")
        _git(
            root, "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost", "commit", "--quiet", "-m", "copy"
        )
        yield root


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
