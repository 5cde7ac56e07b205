"""A run of `rlhf llm` in MLflow, recorded like a stage: every run once, every step once.

What the trainer reports goes into a trace below `.rlhf/` first and from there to MLflow in batches, so that a run that
is killed and taken up loses and repeats nothing. MLflow loads when a run begins: it takes seconds.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import ConfigError, RLCoreError
from rlcore.exit_codes import TRANSIENT
from rlcore.results import TrainResult
from tasks.records import artifacts, environment
from tasks.records.processes import held, owner_process
from tasks.records.trace import TOTAL_STEPS, Reports, TraceFollower, end_of, finite, last_values

if TYPE_CHECKING:
    from tasks.records.tracking import RunLog, Tracker

EXPERIMENT = "rlhf-llm"
"""Of these runs in MLflow."""
SCRATCH = "llm"
COMMAND_SETTINGS = "llm"
"""What the command was told, of the settings of a run; it may differ between attempts."""


class RunInProgress(RLCoreError):
    """Another process is at the same run."""

    exit_code = TRANSIENT


class LLMRun:
    """One attempt of a run: what it reports, in its scratch folder and in MLflow."""

    def __init__(self, tracker: "Tracker", log: "RunLog", folder: Path):
        from tasks.running.following import Batches

        self._tracker, self._log = tracker, log
        self._reports = Reports(folder)
        self._trace = TraceFollower(self._reports.trace.path)
        self._batches = Batches(log)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep one report; the `on_metrics` of a trainer."""
        self._reports.log(step, metrics)
        self._batches.add(self._trace.read())

    def log_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Keep the responses of one evaluation; the `on_samples` of a trainer."""
        self._reports.log_samples(step, rows)

    def finish(self, result: TrainResult) -> str:
        """Complete the run with what was published; a line that says where people see it.

        Raises:
            TrackingFailed: MLflow does not take it.
        """
        from tasks.records.tracking import recording

        trace, samples = self._reports.trace, self._reports.samples
        with recording():
            rows = artifacts.read_rows(trace.path)
            self._log.rows(rows)
            self._log.rows([{"step": trace.last_step, "time": time.time(), **finite(end_of(result))}])
            # A run that was done already reports its number of steps and no more: its files are there.
            if last_values(rows).keys() != {TOTAL_STEPS}:
                self._log.file(trace.path)
                if samples.path.exists():
                    self._log.table(artifacts.read_rows(samples.path), "samples.json")
            folder = str(result.model_dir)
            self._log.tags({"model.folder": folder, "model.md5": artifacts.content_md5(result.model_dir)})
        return f"MLflow: {self._tracker.page(self._log.run_id)}"

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._batches.send()
        self._log.close(status)


def mlflow(key: str, name: str, settings: Mapping[str, Any]) -> AbstractContextManager[LLMRun]:
    """Log a run to MLflow; the entry point `mlflow` of the group `rlhf.metric_sinks`.

    Args:
        key: the same for all attempts of a run.
        name: for people to read.
        settings: nested and plain JSON. An attempt whose trainer has others than the run of that key begins a new run.

    Raises:
        ConfigError: the working directory is in no checkout, where the state of MLflow lies.
    """
    try:
        root = artifacts.find_root()
    except ConfigError:
        raise ConfigError(
            "log='mlflow' needs a checkout: found no dvc.yaml here or above. Run it in your clone, or leave log out."
        ) from None
    return _recorded(root, key, name, settings)


@contextmanager
def _recorded(root: Path, key: str, name: str, settings: Mapping[str, Any]) -> Iterator[LLMRun]:
    """The run with this key; it ends with the status that the block earned.

    Raises:
        RunInProgress: another process is at this run.
        TrackingFailed: MLflow does not answer.
    """
    environment.apply(root)
    # MLflow reads the environment while it loads.
    from tasks.records import tracking

    folder = root / artifacts.scratch(SCRATCH) / key
    owner = owner_process(_lock(folder))
    if owner is not None:
        raise RunInProgress(f"Process {owner} is at this run already, expected none. Wait for its end, or stop it.")
    with held(_lock(folder)):
        tracker = tracking.Tracker(root, EXPERIMENT)
        with tracking.recording():
            tracker.sweep(going_on=_going_on(folder))
            log = tracker.open_run(key, name, inputs=_inputs(settings))
            log.params(settings)
            log.text("\n".join(tracking.versions()), "versions.txt")
        run = LLMRun(tracker, log, folder)
        with tracking.ending(run.close):
            yield run
        shutil.rmtree(folder)


def _lock(folder: Path) -> Path:
    return folder / "lock"


def _going_on(folder: Path) -> set[str]:
    """Keys of the other runs of this checkout whose process lives."""
    others = [other for other in folder.parent.glob("*/") if other != folder]
    return {other.name for other in others if owner_process(_lock(other)) is not None}


def _inputs(settings: Mapping[str, Any]) -> str:
    """Names the settings of the trainer."""
    trainer = {name: values for name, values in settings.items() if name != COMMAND_SETTINGS}
    return hashlib.md5(json.dumps(trainer, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
