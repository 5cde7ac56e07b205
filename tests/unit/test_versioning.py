"""What a failed reproduction means, what md5s DVC gives, and which processes may not outlive their owner."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlcore.errors import ConfigError, DataError
from tasks.records import artifacts, versioning
from tasks.records.processes import end_group, held, living, run_group, start_ticks
from tasks.records.versioning import StageFailed, Transient, _failure

REPRO = "ERROR: failed to reproduce 'sft': failed to run: python -m tasks.sft, exited with {}"


@pytest.mark.parametrize(
    ("said", "note", "kind", "code", "message"),
    [
        (REPRO.format(2), {"exit_code": 2, "error": "sft.lr: missing."}, StageFailed, 2, "sft: sft.lr: missing."),
        (REPRO.format(75), {"exit_code": 75, "error": "disk full."}, Transient, 75, "sft: disk full."),
        (REPRO.format(143), {"exit_code": 143, "error": "interrupted"}, StageFailed, 143, "sft: interrupted"),
        (REPRO.format(-9), None, Transient, 75, "sft: its process was killed"),
        (REPRO.format(137), None, Transient, 75, "sft: its process was killed"),
        (
            "ModuleNotFoundError: No module named 'trl'\n" + REPRO.format(1),
            None,
            StageFailed,
            1,
            "No module named 'trl'",
        ),
        ("ERROR: Unable to acquire lock. Most likely another DVC", None, Transient, 75, "Unable to acquire lock"),
        ("ERROR: '/x/y' is busy, it is being blocked by: PID 7", None, Transient, 75, "is busy"),
        ("ERROR: 'dvc.lock' format error: extra keys", None, StageFailed, 2, "format error"),
        ("ERROR: unexpected error - disk I/O error", None, Transient, 75, "disk I/O error"),
        (
            "ERROR: unexpected error - [Errno 28] No space left on device",
            {"exit_code": 0, "error": None},
            Transient,
            75,
            "",
        ),
        ("ERROR: failed to reproduce 'sft': missing data 'data/x'", None, StageFailed, 2, "missing data 'data/x'"),
    ],
)
def test_a_failure_says_whether_to_try_again(said, note, kind, code, message):
    failure = _failure("sft", said, note)
    assert type(failure) is kind
    assert failure.exit_code == code
    assert message in str(failure)


def test_content_md5_of_files_and_folders(tmp_path):
    (tmp_path / "d" / "b").mkdir(parents=True)
    (tmp_path / "d" / "a").write_text("hello")
    (tmp_path / "d" / "b" / "c").write_text("")
    (tmp_path / "d" / "__pycache__").mkdir()
    (tmp_path / "d" / "__pycache__" / "x.pyc").write_text("ignored")
    # md5 of "hello" and of nothing; a folder is the md5 of the JSON list of its files.
    assert artifacts.content_md5(tmp_path / "d" / "a") == "5d41402abc4b2a76b9719d911017c592"
    assert artifacts.content_md5(tmp_path / "d" / "b" / "c") == "d41d8cd98f00b204e9800998ecf8427e"
    listing = (
        '[{"md5": "5d41402abc4b2a76b9719d911017c592", "relpath": "a"}, '
        '{"md5": "d41d8cd98f00b204e9800998ecf8427e", "relpath": "b/c"}]'
    )
    md5sum = subprocess.run(["md5sum"], input=listing, capture_output=True, text=True, check=True).stdout.split()[0]
    assert artifacts.content_md5(tmp_path / "d") == f"{md5sum}.dir"


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """A checkout without git, whose cache holds a folder that was added."""
    root = tmp_path_factory.mktemp("added")
    (root / ".dvc").mkdir()
    versioning.prepare(root)
    model = root / "data" / "model"
    (model / "deep").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    # Names whose order differs by name and by folder.
    (model / "deep-er").mkdir()
    (model / "deep-er" / "b").write_text("b")
    (model / "z").write_text("z")
    (model / "deep" / "weights").write_bytes(bytes(1000))
    environment = {**os.environ, "DVC_SITE_CACHE_DIR": str(root / "site"), "DVC_NO_ANALYTICS": "1"}
    subprocess.run([sys.executable, "-m", "dvc", "add", "-q", "data/model"], cwd=root, env=environment, check=True)
    return root


@pytest.fixture
def repository(added, tmp_path, monkeypatch):
    """A copy of it for one test."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    return Path(shutil.copytree(added, tmp_path / "checkout"))


def test_a_version_comes_back_by_the_md5_that_dvc_gave_it(repository):
    said = (repository / "data" / "model.dvc").read_text()
    md5 = artifacts.content_md5(repository / "data" / "model")
    assert f"md5: {md5}" in said
    versioning.materialise(md5, Path("data/champion"), repository)
    assert artifacts.content_md5(repository / "data" / "champion") == md5
    (repository / "data" / "champion" / "config.json").write_text("changed")
    versioning.materialise(md5, Path("data/champion"), repository)
    assert (repository / "data" / "champion" / "config.json").read_text() == "{}"


def test_a_damaged_version_is_refused_and_what_was_there_stays(repository):
    md5 = artifacts.content_md5(repository / "data" / "model")
    weights = artifacts.content_md5(repository / "data" / "model" / "deep" / "weights")
    cached = repository / ".dvc" / "cache" / "files" / "md5" / weights[:2] / weights[2:]
    cached.chmod(0o644)
    cached.write_bytes(bytes(999))
    (repository / "data" / "champion").mkdir()
    with pytest.raises(DataError, match="damaged in the DVC cache"):
        versioning.materialise(md5, Path("data/champion"), repository)
    assert [path.name for path in (repository / "data").iterdir()].count("champion.partial") == 0


def test_a_version_that_climbs_out_of_its_folder_is_refused(repository):
    listing = json.dumps([{"md5": "5d41402abc4b2a76b9719d911017c592", "relpath": "../../evil"}])
    md5 = "aa" + "0" * 30 + ".dir"
    entry = repository / ".dvc" / "cache" / "files" / "md5" / "aa" / md5[2:]
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(listing)
    with pytest.raises(DataError, match="outside its folder"):
        versioning.materialise(md5, Path("data/champion"), repository)


def test_an_unknown_version_says_where_it_was_looked_for(repository):
    with pytest.raises(DataError, match="not in the DVC cache"):
        versioning.materialise("0" * 32, Path("data/champion"), repository)


def test_no_champion_is_a_marker_and_the_champion_replaces_it(repository):
    versioning.place_champion(None, repository)
    marker = repository / artifacts.NO_CHAMPION
    assert marker.exists()
    md5 = artifacts.content_md5(repository / "data" / "model")
    versioning.place_champion(md5, repository)
    assert not marker.exists()
    assert artifacts.content_md5(repository / artifacts.CHAMPION_DIR) == md5
    versioning.place_champion(None, repository)
    assert [path.name for path in (repository / artifacts.CHAMPION_DIR).iterdir()] == ["NONE"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_dvc_is_told_when_there_is_no_git_and_when_there_is_again(tmp_path):
    local = tmp_path / ".dvc" / "config.local"
    local.parent.mkdir()
    local.write_text("['remote \"mine\"']\n    url = /x\n")
    versioning.prepare(tmp_path)
    assert "no_scm = true" in local.read_text()
    assert "url = /x" in local.read_text()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    versioning.prepare(tmp_path)
    assert local.read_text() == "['remote \"mine\"']\n    url = /x\n"


@pytest.mark.parametrize("content", [b"<<<<<<< HEAD\nstages: {\n", b"\xff\xfe", b"schema: '2.0'\nstages: [1]\n", b""])
def test_a_damaged_lock_file_says_how_to_mend_it(tmp_path, content):
    (tmp_path / "dvc.lock").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"^dvc\.lock: [^\n]+\. Restore it with `git checkout dvc\.lock`, or delete it\.$"
    ):
        versioning.prepare(tmp_path)


SLEEPER = "import subprocess, sys; subprocess.Popen(['sleep', '60']); sys.stdout.write('x'); sys.stdout.flush(); {}"


def test_no_child_outlives_an_exception_of_the_caller(tmp_path):
    groups = []

    def fail():
        if (tmp_path / "out").stat().st_size:
            assert len(living(groups[0])) == 2
            raise KeyError

    body = SLEEPER.format("import time; time.sleep(60)")
    with (tmp_path / "out").open("wb") as output, pytest.raises(KeyError):
        run_group(
            [sys.executable, "-c", body], cwd=tmp_path, environment=os.environ, output=output,
            on_start=groups.append, while_running=fail,
        )  # fmt: skip
    assert living(groups[0]) == []


def test_no_child_outlives_its_parent(tmp_path):
    groups = []
    with (tmp_path / "out").open("wb") as output:
        status = run_group(
            [sys.executable, "-c", SLEEPER.format("sys.exit(3)")], cwd=tmp_path, environment=os.environ, output=output,
            on_start=groups.append,
        )  # fmt: skip
    assert status == 3
    assert living(groups[0]) == []


def test_who_does_not_listen_is_killed():
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    end_group(process.pid, grace=0.3)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_the_stage_that_a_killed_flow_left_is_ended(tmp_path):
    (tmp_path / ".dvc").mkdir()
    orphan = subprocess.Popen(["sleep", "60"], start_new_session=True)
    note = {"group": orphan.pid, "start_ticks": start_ticks(orphan.pid)}
    artifacts.write_json(tmp_path / ".rlhf" / "running-group.json", {**note, "start_ticks": 1})
    versioning.prepare(tmp_path)
    # Another process has the id by now: it is left alone.
    assert living(orphan.pid) == [orphan.pid]
    artifacts.write_json(tmp_path / ".rlhf" / "running-group.json", note)
    versioning.prepare(tmp_path)
    assert orphan.wait(timeout=5) == -signal.SIGTERM


def test_a_lock_is_waited_for_and_freed_by_a_kill(tmp_path):
    body = "\n".join(
        [
            "import sys, time; from pathlib import Path; from tasks.records.processes import held",
            "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
        ]
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", body, str(tmp_path / "lock")], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(versioning.__file__).parents[2])},
    )  # fmt: skip
    holder.stdout.readline()
    owners = []

    def on_wait(owner):
        owners.append(owner)
        holder.kill()

    started = time.monotonic()
    with held(tmp_path / "lock", on_wait):
        assert holder.wait(timeout=5) == -signal.SIGKILL
    assert owners[0].startswith(f"process {holder.pid} on ")
    assert time.monotonic() - started < 10
