"""DVC itself, in the ways it fails: busy with another command, asked to add what a stage makes, after half a stage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.errors import ConfigError, DataError
from tasks.records import artifacts, dvc_process, versioning
from tasks.records.versioning import StageFailed, Transient

HOLD = """
import sys, time
from dvc.repo import Repo
with Repo(".") as repo, repo.lock:
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""
"""Another DVC command that works for some seconds."""

HALF = "import pathlib, sys; pathlib.Path('model.txt').write_text('half'); sys.exit(3)"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A checkout without git whose stage writes its output and then fails, and a folder of raw data."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root = tmp_path / "checkout"
    (root / ".dvc").mkdir(parents=True)
    (root / "data/raw/own").mkdir(parents=True)
    (root / "data/raw/own/rows").write_text("1\n")
    (root / "half.py").write_text(HALF)
    stages = {"sft": {"cmd": "python half.py", "deps": ["half.py"], "outs": ["model.txt"]}}
    (root / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    versioning.prepare(root)
    return root


def other_command(root: Path, seconds: float) -> subprocess.Popen[str]:
    """A DVC command of somebody else that holds DVC's lock."""
    command = [sys.executable, "-c", HOLD, str(seconds)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def keep(root: Path) -> Path:
    """Let DVC keep the raw data; its note."""
    folder = Path("data/raw/own")
    versioning.keep(folder, artifacts.content_md5(root / folder), root)
    return root / f"{folder}.dvc"


@pytest.mark.long
def test_another_dvc_command_is_waited_for(checkout, monkeypatch):
    # DVC itself tries for 3 seconds: only the second attempt finds its lock free.
    monkeypatch.setattr(dvc_process, "LOCK_PAUSES", (1.0, 30.0))
    other = other_command(checkout, 9.0)
    assert "md5: " in keep(checkout).read_text()
    assert other.wait() == 0


@pytest.mark.slow
def test_one_that_lasts_ends_in_a_line_that_may_be_tried_again_and_one_that_was_killed_holds_nothing(
    checkout, monkeypatch
):
    monkeypatch.setattr(dvc_process, "LOCK_PAUSES", (0.1,))
    other = other_command(checkout, 120.0)
    with pytest.raises(Transient, match=r"^dvc add data/raw/own: Unable to acquire lock[^\n]*$"):
        keep(checkout)
    other.kill()
    other.wait()
    assert keep(checkout).exists()


def test_what_a_stage_makes_is_not_added_and_the_message_says_by_which(checkout):
    (checkout / "model.txt").write_text("whole")
    with pytest.raises(ConfigError, match=r"^model\.txt is made by a stage, and kept with it: [^\n]*sft[^\n]*$"):
        versioning.keep(Path("model.txt"), "0" * 32, checkout)
    assert not (checkout / "model.txt.dvc").exists()
    assert (checkout / "model.txt").read_text() == "whole"


def test_what_a_failed_stage_left_is_neither_noted_nor_kept(checkout):
    with pytest.raises(StageFailed):
        versioning.reproduce("sft", root=checkout, environment=os.environ)
    assert (checkout / "model.txt").read_text() == "half"
    assert not (checkout / "dvc.lock").exists()
    assert not list((checkout / ".dvc" / "cache").rglob(artifacts.content_md5(checkout / "model.txt")[2:]))
    (checkout / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    with pytest.raises(DataError, match="no stage 'sft'"):
        versioning.facts("sft", checkout)
