"""A run's notes are committed by themselves: whatever else a person has changed or staged stays as it is."""

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tasks.records import publication
from tasks.records.lent_parameters import lend
from tasks.records.publication import commit, published

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NOTES = ["data/models/champion.dvc", "dvc.lock", "params.yaml"]


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose last commit has params.yaml and two files of code; dvc.lock and the note are new."""
    git(tmp_path, "init", "-q")
    for name, value in (("user.name", "t"), ("user.email", "t@localhost")):
        git(tmp_path, "config", name, value)
    for name in ("params.yaml", "staged.py", "edited.py"):
        (tmp_path / name).write_text("seed: 0\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-qm", "start")
    (tmp_path / "data/models").mkdir(parents=True)
    for name in NOTES:
        (tmp_path / name).write_text("seed: 1\n")
    return tmp_path


def test_the_notes_are_committed_and_staged_edited_and_new_files_of_a_person_are_not(checkout):
    for name in ("staged.py", "edited.py", "new.py"):
        (checkout / name).write_text("seed: 2\n")
    git(checkout, "add", "staged.py")
    said: list[str] = []
    made = commit(checkout, published(checkout, "data/raw/demo"), "a run", said.append)
    assert git(checkout, "show", "--format=%H %s", "--name-only").split("\n") == [f"{made} a run", "", *NOTES, ""]
    assert git(checkout, "status", "--porcelain").splitlines() == [" M edited.py", "M  staged.py", "?? new.py"]
    assert said == [f"git commit {made[:12]}: dvc.lock, data/models/champion.dvc, params.yaml"]


def test_what_a_person_staged_of_a_note_gives_way_to_what_the_run_wrote(checkout):
    (checkout / "params.yaml").write_text("seed: 3\n")
    git(checkout, "add", "params.yaml")
    (checkout / "params.yaml").write_text("seed: 4\n")
    commit(checkout, ["params.yaml"], "a run", str)
    assert git(checkout, "show", "HEAD:params.yaml") == "seed: 4\n"


def test_a_second_time_there_is_nothing_to_commit_and_nothing_is_said(checkout):
    names = published(checkout, "data/raw/demo")
    first = commit(checkout, names, "a run", str)
    assert commit(checkout, names, "a run", pytest.fail) is None
    assert git(checkout, "rev-parse", "HEAD").strip() == first


def test_the_note_of_data_of_ones_own_goes_with_it_and_borrowed_settings_do_not(checkout):
    (checkout / "data/raw").mkdir()
    for name in ("data/raw/own.dvc", "data/raw/.gitignore"):
        (checkout / name).touch()
    assert set(published(checkout, "data/raw/own")) == {*NOTES, "data/raw/own.dvc", "data/raw/.gitignore"}
    lend(checkout, [{"seed": 1}])
    assert set(published(checkout, "data/raw/demo")) == {"dvc.lock", "data/models/champion.dvc"}


def test_without_git_nothing_is_committed(tmp_path):
    (tmp_path / "dvc.lock").touch()
    assert commit(tmp_path, ["dvc.lock"], "a run", pytest.fail) is None


def test_a_refusal_is_one_line_and_leaves_the_index_as_it_was(checkout):
    hook = checkout / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'error: no commits on Fridays' >&2\nexit 1\n")
    hook.chmod(0o755)
    git(checkout, "add", "--all", "--", "dvc.lock")
    before = git(checkout, "status", "--porcelain")
    said: list[str] = []
    assert commit(checkout, ["dvc.lock", "data/models/champion.dvc"], "a run", said.append) is None
    assert said == [
        "git: error: no commits on Fridays. Nothing was committed; "
        "by hand: git add dvc.lock data/models/champion.dvc && git commit"
    ]
    assert git(checkout, "status", "--porcelain") == before


def test_another_git_that_is_busy_is_waited_for(checkout, monkeypatch):
    lock = checkout / ".git/index.lock"
    lock.touch()
    other = threading.Timer(0.5, lock.unlink)
    other.start()
    began = time.monotonic()
    assert commit(checkout, ["params.yaml"], "a run", str)
    assert time.monotonic() - began > 0.4
    lock.touch()
    (checkout / "params.yaml").write_text("seed: 5\n")
    monkeypatch.setattr(publication, "BUSY_SECONDS", 0.0)
    said: list[str] = []
    assert commit(checkout, ["params.yaml"], "a run", said.append) is None
    assert "index.lock': File exists. Nothing was committed" in said[0]
