"""What a stage process needs: its config, a trace, a place to resume from, and an honest end.

    def train_policy(config: PPOConfig) -> None:
        with stage("ppo", config) as run:
            train = trainer_for("ppo")
            sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
            run.finish(train(config, data, POLICY_DIR, resume_dir=run.resume_dir, **sinks))

    if __name__ == "__main__":
        main(train_policy, PPOConfig)

Importing this module loads neither torch nor any tool of orchestration.
"""

import argparse
import errno
import hashlib
import inspect
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rlcore.configs import StageConfig
from rlcore.exit_codes import CANCELLED, DONE, FAILED, exit_code_of
from rlcore.results import StopTraining, TrainResult
from tasks.records import artifacts
from tasks.records.definition import definition
from tasks.records.environment import is_small_machine
from tasks.records.folders import named_folders
from tasks.records.parameters import SECTIONS, read_yaml, stage_config
from tasks.records.processes import peak_memory, process_start
from tasks.records.signals import ignore_signals, raise_if_asked, raise_on_signals, wait_for_a_look
from tasks.records.trace import Reports, end_of, line
from tasks.records.wording import first_line

STAGE_SECONDS = "time/stage_s"
"""Seconds that the process of a stage took, imports included; after a resume only those of the last process."""

SAVING_SECONDS = 10.0
"""What the step under way gets to end, once a signal asks the stage to, so that the trainer saves its state."""

Config = TypeVar("Config", bound=StageConfig)
logger = logging.getLogger(__name__)


class Cancelled(StopTraining):
    """SIGTERM or SIGINT arrived. A trainer that hears of it between two steps saves its state first."""

    exit_code = CANCELLED


class StageRun:
    """One attempt of a stage, from opening to `finish`.

    Attributes:
        stage: name in `dvc.yaml`.
        resume_dir: folder for the trainer's state. It survives a kill and is the same one as long as the stage's
            settings, data and code stay the same.
    """

    def __init__(self, stage: str, directory: Path):
        self.stage = stage
        self.resume_dir = _state(directory)
        if _is_recorded(stage, directory, Path()):
            # A finished attempt is asked for again: its outputs were lost, or somebody wants it anew.
            shutil.rmtree(directory)
        self._finished = _finished(directory)
        self.resume_dir.mkdir(parents=True, exist_ok=True)
        self._reports = Reports(directory)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one report to the trace; the `on_metrics` of a trainer.

        After a resume the first report decides where training goes on: reports of its step and later steps, and samples
        of later steps, that an earlier attempt wrote are dropped.

        Raises:
            Cancelled: a signal arrived before. Trainers save their state then.
        """
        raise_if_asked()
        wait_for_a_look(SAVING_SECONDS)
        self._reports.log(step, metrics)

    def log_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Keep the responses of one evaluation; the `on_samples` of a trainer. A step reported twice is kept once."""
        self._reports.log_samples(step, rows)

    def finish(self, result: TrainResult | None = None) -> None:
        """Publish trace and samples as outputs of the stage; the trace ends with the time and memory that it took.

        The state to resume from stays until `dvc.lock` names the outputs: whoever is killed before that goes on from
        it. It goes with `drop_states`, or when the stage starts again.

        Args:
            result: of a trainer; its best step and the metrics there end the trace, under the prefix `best/`.
        """
        best = {} if result is None else end_of(result)
        end = {**best, STAGE_SECONDS: time.time() - process_start(), **peak_memory()}
        trace = self._reports.trace.text() + line(self._reports.trace.last_step, end)
        artifacts.write_text(artifacts.TRACES[self.stage], trace)
        if self.stage in artifacts.SAMPLES:
            artifacts.write_text(artifacts.SAMPLES[self.stage], self._reports.samples.text())
        artifacts.write_text(self._finished, artifacts.content_md5(artifacts.TRACES[self.stage]))


@contextmanager
def stage(section: str, config: StageConfig) -> Iterator[StageRun]:
    """Open a stage: its scratch folder, keyed by its settings, data and code, and its trace.

    Args:
        section: of `params.yaml`.
        config: what the stage runs with.
    """
    name = artifacts.stage_of(section)
    key = stage_key(name, config)
    home = artifacts.scratch(name)
    _prune(home, key)
    run = StageRun(name, home / key)
    artifacts.write_json(artifacts.running_file(name), {"key": key, "pid": os.getpid()})
    yield run


def stage_key(name: str, config: StageConfig, root: Path = Path(), known: Mapping[str, str] | None = None) -> str:
    """Hash of a stage's config and parameters and of the content of its dependencies, 32 hexadecimal digits.

    Parameters and dependencies are those of `dvc.yaml`, and the folders that the config names.

    Args:
        name: of the stage.
        config: what it runs with.
        root: the checkout.
        known: md5 of paths that need not be read again.
    """
    known = known or {}
    defined = definition(name, root)
    contents = {path: known.get(path) or artifacts.content_md5(root / path) for path in defined.deps}
    contents |= named_folders(config, root)
    text = json.dumps(
        {"config": config.model_dump(mode="json"), "deps": contents, "params": defined.params}, sort_keys=True
    )
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def drop_states(name: str, root: Path) -> None:
    """Give up the state of attempts of a stage whose outputs `dvc.lock` names: nobody resumes from it."""
    for directory in (root / artifacts.scratch(name)).glob("*/"):
        if _is_recorded(name, directory, root):
            with suppress(FileNotFoundError):
                shutil.rmtree(_state(directory))


def main(function: Callable[[Config], object], config_class: type[Config], section: str | None = None) -> NoReturn:
    """Run a stage as a process: the only door. It ends with an exit code, repeated in the stage's `exit.json`.

    Args:
        function: the stage; gets its config from `params.yaml` of the working directory.
        config_class: of that config.
        section: of `params.yaml`; by default the one whose class is `config_class`.
    """
    section = section or next(name for name, known in SECTIONS.items() if known is config_class)
    argparse.ArgumentParser(
        prog=f"python -m tasks.{section}",
        description=f"{inspect.getdoc(function)}\n\nSettings: section `{section}` of params.yaml. Usually run by DVC.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    name = artifacts.stage_of(section)
    started = process_start()
    imported = time.time()
    raise_on_signals(lambda number: Cancelled(signal.Signals(number).name))
    code, error = _run(function, config_class, name, section)
    with suppress(OSError):
        # Without this file the stage counts as killed, which is what a full disk amounts to.
        artifacts.write_json(
            artifacts.exit_file(name),
            {
                "exit_code": code,
                "error": error,
                "started": started,
                "import_seconds": round(imported - started, 3),
                "wall_seconds": round(time.time() - started, 3),
                "cpu_seconds": round(time.process_time(), 3),
            },
        )
    if error:
        sys.stderr.write(f"{name}: {error}\n")
    sys.exit(code)


def _run(
    function: Callable[[Config], object], config_class: type[Config], name: str, section: str
) -> tuple[int, str | None]:
    """Call the stage; its exit code and one line or more about what went wrong."""
    try:
        artifacts.exit_file(name).unlink(missing_ok=True)
        _log_to(artifacts.log_file(name))
        _limit_threads()
        config = stage_config(section)
        assert isinstance(config, config_class)
        function(config)
    except Cancelled:
        ignore_signals()
        return CANCELLED, "interrupted; it goes on from its last checkpoint"
    except Exception as error:
        code = exit_code_of(error)
        logger.exception("%s ended with exit code %d", name, code)
        return code, _describe(error, code, artifacts.log_file(name))
    return DONE, None


def _describe(error: Exception, code: int, log: Path) -> str:
    if code == FAILED:
        return f"{type(error).__name__}: {first_line(str(error))}. The stack trace is in {log}."
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        advice = (
            "Free some disk space; the next run goes on." if error.errno == errno.ENOSPC else "Check it and run again."
        )
        return f"{place}{error.strerror}. {advice}"
    return str(error) or type(error).__name__


def _state(directory: Path) -> Path:
    return directory / "state"


def _finished(directory: Path) -> Path:
    """Holds the md5 of the trace that the attempt published; a trace holds times, so no other attempt has its md5."""
    return directory / "finished"


def _is_recorded(name: str, directory: Path, root: Path) -> bool:
    """Whether `dvc.lock` names what the attempt in `directory` published."""
    if not _finished(directory).exists() or not (root / artifacts.LOCK).exists():
        return False
    locked = read_yaml(root / artifacts.LOCK).get("stages", {}).get(name, {})
    recorded = {entry["path"]: entry.get("md5") for entry in locked.get("outs", [])}
    return recorded.get(str(artifacts.TRACES[name])) == _finished(directory).read_text(encoding="utf-8")


def _prune(home: Path, key: str) -> None:
    """Keep this attempt's folder and the newest one that was interrupted under other settings."""
    others = [folder for folder in home.glob("*/") if folder.name != key]
    others.sort(key=lambda folder: (_finished(folder).exists(), -folder.stat().st_mtime))
    for position, folder in enumerate(others):
        if position > 0 or _finished(folder).exists():
            shutil.rmtree(folder)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


def _limit_threads() -> None:
    """One thread on small machines, where more cost time and the order of sums decides the numbers."""
    if "OMP_NUM_THREADS" not in os.environ and is_small_machine():
        os.environ["OMP_NUM_THREADS"] = "1"
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
