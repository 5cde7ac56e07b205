"""Whose checkpoints lie in the resume_dir of a TRL trainer: those of another program are left where they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.checkpoint.manifest import described
from rlcore.errors import CheckpointError
from rlcore.results import ignore_metrics
from rlcore.trl_trainers.arguments import Plan
from rlcore.trl_trainers.metrics import ReportCallback, renamed
from rlcore.trl_trainers.run import _claim, run
from tests.support.tiny import tiny_llama

IDENTITY = {"config": {"seed": 0}}


class Began(Exception):
    """A trainer was asked for."""


def begin(folder: Path) -> Any:
    raise Began


def start(folder: Path, identity: dict[str, Any] = IDENTITY) -> None:
    plan = Plan(total_steps=3, batch_size=1, logging_steps=1, save_every=1)
    report = ReportCallback(ignore_metrics, renamed({}))
    out = folder.parent / "model"
    run(begin, lambda _: None, plan, identity, report, model=tiny_llama(), output_dir=out, resume_dir=folder)


def newest(folder: Path) -> Path | None:
    return _claim(folder, IDENTITY)


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    return tmp_path / "steps"


def put(folder: Path, *names: str) -> list[Path]:
    """Files below a folder."""
    files = [folder / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("weights")
    return files


def test_checkpoints_of_another_program_are_refused_and_stay(steps):
    files = put(steps, "checkpoint-5/model.safetensors", "checkpoint-10/complete", "notes.txt")
    with pytest.raises(CheckpointError, match=r"found checkpoint-\d+ and no identity.json, expected checkpoints of"):
        start(steps)
    assert all(file.read_text() == "weights" for file in files)
    assert not (steps / "identity.json").exists()


def test_a_folder_of_ones_own_beside_the_checkpoints_stays(steps):
    (mine,) = put(steps, "checkpoint-final/model.safetensors")
    with pytest.raises(Began):
        start(steps)
    assert mine.read_text() == "weights"


def test_a_checkpoint_that_was_never_finished_goes_and_the_run_begins_anew(steps):
    with pytest.raises(Began):
        start(steps)
    put(steps, "checkpoint-1/model.safetensors")
    with pytest.raises(Began):
        start(steps)
    assert not (steps / "checkpoint-1").exists()


def test_another_run_is_refused_before_anything_goes(steps):
    with pytest.raises(Began):
        start(steps)
    files = put(steps, "checkpoint-1/complete", "checkpoint-2/model.safetensors")
    with pytest.raises(CheckpointError, match=r"config.seed: found 0, expected 1"):
        start(steps, {"config": {"seed": 1}})
    (steps / "identity.json").write_text("{")
    with pytest.raises(CheckpointError, match="identity.json: .*expected what this stage wrote"):
        start(steps)
    (steps / "identity.json").write_text("[]")
    with pytest.raises(CheckpointError, match="identity.json: .*expected what this stage wrote"):
        start(steps)
    assert all(file.exists() for file in files)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda file: file.unlink(), "optimizer.pt is missing"),
        (lambda file: file.write_text("w"), "optimizer.pt has 1 bytes, expected 7"),
        (lambda file: file.write_text("weighed"), "optimizer.pt does not have the sha256"),
        (lambda file: (file.parent / "complete").write_text(""), "complete cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_without_a_whole_one_the_run_ends(steps, caplog, harm, named):
    with pytest.raises(Began):
        start(steps)
    for step in (1, 2):
        files = put(steps, f"checkpoint-{step}/optimizer.pt")
        (steps / f"checkpoint-{step}/complete").write_text(json.dumps(described(files)))
    assert newest(steps) == steps / "checkpoint-2"
    harm(steps / "checkpoint-2/optimizer.pt")
    assert newest(steps) == steps / "checkpoint-1"
    assert named in caplog.text
    harm(steps / "checkpoint-1/optimizer.pt")
    with pytest.raises(CheckpointError, match="found 2 checkpoints, none of them whole"):
        newest(steps)
