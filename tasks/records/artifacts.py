"""Every path under `data/`, relative to the checkout, and how rows and contents are read."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from rlcore.errors import ConfigError, DataError

STAGES = ("demo_data", "validate", "sft", "reward", "policy", "evaluate")
"""The stages of `dvc.yaml`, in order."""

SAMPLING_ALGORITHMS = ("ppo", "grpo")
"""Algorithms that learn from scores of responses which the policy samples."""

POLICY_ALGORITHMS = (*SAMPLING_ALGORITHMS, "dpo", "orpo")
"""Sections of `params.yaml` that the stage `policy` may run; the others learn from preference pairs."""

TRAINED = ("sft", "reward", "policy")
"""Stages that train; the accelerator is theirs while they run."""

SAMPLED = ("reward", "policy", "evaluate")
"""Stages that keep responses to be read."""

Split = Literal["train", "validation", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "validation", "held_out")

DATA = Path("data")
RAW = DATA / "raw" / "demo"
VALIDATED = DATA / "validated"
DEMONSTRATIONS: dict[Split, Path] = {split: VALIDATED / "demonstrations" / f"{split}.jsonl" for split in SPLITS}
PREFERENCES: dict[Split, Path] = {split: VALIDATED / "preferences" / f"{split}.jsonl" for split in SPLITS}
PROMPTS: dict[Split, Path] = {split: VALIDATED / "prompts" / f"{split}.jsonl" for split in SPLITS}

SFT_DIR = DATA / "models" / "sft"
REWARD_DIR = DATA / "models" / "reward"
POLICY_DIR = DATA / "models" / "policy"
CHAMPION_DIR = DATA / "models" / "champion"
NO_CHAMPION = CHAMPION_DIR / "NONE"
"""Marks a champion folder without a champion."""
NO_CHAMPION_MD5 = "7b79c00999d2402438fee4cf84c1a24f.dir"
"""What DVC calls such a folder."""
CHAMPION_NOTE = Path(f"{CHAMPION_DIR}.dvc")
"""DVC's note of the champion's content, for git."""

UNREAD: dict[str, tuple[Path, ...]] = {
    "ppo": (VALIDATED / "preferences",),
    "grpo": (VALIDATED / "preferences",),
    "dpo": (VALIDATED / "prompts", REWARD_DIR),
    "orpo": (VALIDATED / "prompts", REWARD_DIR),
}
"""Of the data that `dvc.yaml` lists for the stage `policy`, what an algorithm does not read."""

METRICS = DATA / "metrics"
TRACES = {stage: METRICS / f"{stage}.jsonl" for stage in STAGES}
SAMPLES = {stage: METRICS / f"{stage}-samples.jsonl" for stage in SAMPLED}
VALIDATION = METRICS / "validation.json"
VALIDATION_PAGE = METRICS / "validation.html"
EVALUATE = METRICS / "evaluate.json"
ANSWERS = METRICS / "evaluate-answers.jsonl"
"""Every answer to a held-out prompt, with what was measured on it."""
FIGURES = METRICS / "figures"
CURVES_DIR = METRICS / "curves"
"""KL and reward over the steps of the policy's training, for `dvc plots`."""

DATA_REPORT = Path("data") / "validation.json"
DATA_REPORT_PAGE = DATA_REPORT.with_suffix(".html")
"""Where the run of a pipeline in MLflow keeps what the validation found; the page also has drift."""

PARAMS = Path("params.yaml")
PIPELINE = Path("dvc.yaml")
LOCK = Path("dvc.lock")
STATE = Path(".rlhf")
"""What this machine needs and no other: servers' databases, logs, scratch."""
LOGS = STATE / "logs"
RUN_LOCK = STATE / "pipeline.lock"
"""Held by whoever changes what lies under `data/`: one run of the pipeline at a time."""


def find_root(start: Path | None = None) -> Path:
    """The checkout around `start` (by default the working directory): the nearest folder with a `dvc.yaml`.

    Raises:
        ConfigError: there is none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / PIPELINE).is_file():
            return folder
    raise ConfigError(f"{start} needs a checkout: found no dvc.yaml here or above. Go to your clone.")


def stage_of(section: str) -> str:
    """The stage of `dvc.yaml` that runs a section of `params.yaml`."""
    return "policy" if section in POLICY_ALGORITHMS else section


def scratch(stage: str) -> Path:
    """Folder for what a stage keeps between two attempts."""
    return STATE / "scratch" / stage


def reports(attempt: Path) -> Path:
    """What an attempt of a stage has reported so far, in its scratch folder."""
    return attempt / "metrics.jsonl"


def exit_file(stage: str) -> Path:
    """How the last process of a stage ended."""
    return scratch(stage) / "exit.json"


def running_file(stage: str) -> Path:
    """Which scratch folder the process of a stage uses."""
    return scratch(stage) / "running.json"


def log_file(stage: str) -> Path:
    """What the processes of a stage printed, and their stack traces."""
    return LOGS / f"{stage}.log"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file (UTF-8). Only a line feed ends a line: other separators may stand inside a text.

    Raises:
        DataError: the file is missing, or a line is not a JSON object.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Run the stage that writes it, or check the path.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}. Save the file as UTF-8.") from None
    return [_parse(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines, whole or not at all. NaN and infinity have no place in JSON and raise ValueError."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        DataError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Run the stage that writes it.") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}). Run the stage that writes it again.") from None


def write_json(path: Path, value: object) -> None:
    """Write one JSON value, indented, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(text.encode("utf-8"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def content_md5(path: Path) -> str:
    """The md5 that DVC gives a file or a folder; a folder's ends with `.dir`.

    Raises:
        DataError: nothing lies at the path.
    """
    if path.is_file():
        return _file_md5(path)
    if not path.is_dir():
        raise DataError(f"{path}: nothing there. Run the stage that writes it, or check the path.")
    entries = [{"md5": _file_md5(path / name), "relpath": name} for name in sorted(_files_below(path))]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno}). Mend the line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: found {type(row).__name__}, expected a JSON object. Mend the line.")
    return row


def _file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _files_below(folder: Path) -> Iterator[str]:
    """Names that DVC counts: everything but what `.dvcignore` lists."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if not name.endswith(".pyc"):
                yield (Path(parent) / name).relative_to(folder).as_posix()
