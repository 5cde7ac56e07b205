"""A version trained again in a clone, by stages that copy what they read."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.errors import ConfigError, DataError
from tasks.records.artifacts import CHAMPION_DIR, POLICY_DIR, SFT_DIR, STATE, content_md5, write_text
from tasks.records.processes import held
from tasks.records.versioning import StageFailed
from tasks.registry.reproduction import reproduce
from tasks.registry.store import POLICY_MODEL
from tests.support.checkout import wait_until
from tests.support.registry import RAW, Registry

STAGES = {
    "validate": ("data/raw/demo", "data/validated"),
    "sft": ("data/validated", "data/models/sft"),
    "reward": ("data/models/sft", "data/models/reward"),
    "policy": ("data/models/reward", "data/models/policy"),
}
SETTINGS = "validate: {source: data/raw/demo}\nsft: {model_name: my-model}\n"
START = f"grep -qs start my-model/weights {CHAMPION_DIR}/weights"
"""Fails where neither start model is the one of the version."""


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def trained(registry: Registry) -> Registry:
    """Version 1: its stages copy what they read and add the content of `code`, and its commit is the first of two."""
    root = registry.root
    write_text(root / RAW / "rows", "rows\n")
    write_text(root / "my-model" / "weights", "start\n")
    write_text(root / "code", "1\n")
    write_text(root / ".gitignore", "/data\n/.rlhf\n/my-model\n")
    write_text(root / ".dvc" / "config", "")
    steps = {
        name: {
            "cmd": f"mkdir -p {out} && cat {read}/* code > {out}/rows" + (f" && {START}" * (name == "sft")),
            "deps": [read, "code"],
            "outs": [out],
        }
        for name, (read, out) in STAGES.items()
    }
    write_text(root / "dvc.yaml", json.dumps({"stages": steps}))
    git(root, "init", "-q")
    git(root, "add", "code", ".gitignore", ".dvc", "dvc.yaml")
    git(root, "commit", "-qm", "first")
    commit = git(root, "rev-parse", "HEAD")
    content = "rows\n"
    for _, out in STAGES.values():
        shutil.rmtree(root / out, ignore_errors=True)
        content += "1\n"
        write_text(root / out / "rows", content)
    registry.keep(RAW)
    write_text(root / "code", "2\n")
    git(root, "commit", "-qam", "second")
    client = registry.client
    client.log_text(registry.run_id, SETTINGS, "params.yaml")
    md5s = {str(path): content_md5(root / path) for path in (RAW, SFT_DIR, POLICY_DIR)}
    tags = {**{f"dvc.{path}.md5": md5 for path, md5 in md5s.items()}, "git.commit": commit}
    client.create_registered_model(POLICY_MODEL)
    client.create_model_version(POLICY_MODEL, source=str(root), run_id=registry.run_id, tags=tags)
    return registry


def again(registry: Registry) -> tuple:
    said: list[str] = []
    return reproduce(registry.client, registry.root, "1", said.append), said


def test_a_version_of_an_earlier_commit_has_the_same_md5(trained: Registry):
    result, said = again(trained)
    assert result.same
    assert "version 1 is reproduced: the checkpoint is " in str(result)
    assert [line.split(",")[0] for line in said] == list(STAGES)
    assert not result.folder.exists()
    assert (trained.root / "code").read_text() == "2\n"
    assert not (trained.root / "dvc.lock").exists()


def test_two_repetitions_of_a_version_do_not_share_their_clone(trained: Registry):
    clone = trained.root / STATE / "reproductions" / "1"
    write_text(clone / "under way", "")
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with held(clone.with_name("1.lock")):
            second = pool.submit(reproduce, trained.client, trained.root, "1", said.append)
            wait_until(lambda: said, 30)
            assert said[0].startswith("waiting for process ")
            assert (clone / "under way").exists()
        assert second.result(timeout=60).same
    assert [line.split(",")[0] for line in said[1:]] == list(STAGES)


@pytest.mark.parametrize("section", ["sft", "ppo"])
def test_a_version_that_began_with_a_champion_gets_that_champion_again(trained: Registry, section: str):
    shutil.rmtree(trained.root / "my-model")
    champion = trained.root / CHAMPION_DIR
    shutil.rmtree(champion)
    write_text(champion / "weights", "start\n")
    trained.keep(CHAMPION_DIR)
    trained.client.set_model_version_tag(POLICY_MODEL, "1", f"dvc.{CHAMPION_DIR}.md5", content_md5(champion))
    write_text(champion / "weights", "the present champion\n")
    settings = f"validate: {{source: data/raw/demo}}\n{section}: {{model_name: {CHAMPION_DIR}}}\n"
    trained.client.log_text(trained.run_id, settings, "params.yaml")
    result, _ = again(trained)
    assert result.same
    assert (champion / "weights").read_text() == "the present champion\n"


def test_another_checkpoint_is_said_with_the_first_model_that_differs(trained: Registry):
    for path in (SFT_DIR, POLICY_DIR):
        trained.client.set_model_version_tag(POLICY_MODEL, "1", f"dvc.{path}.md5", "0" * 32 + ".dir")
    trained.client.set_tag(trained.run_id, "version.torch", "1.0")
    result, _ = again(trained)
    assert not result.same
    assert f"The first that differs is {SFT_DIR}" in str(result)
    assert "the version was trained with 1.0" in str(result)
    assert (result.folder / POLICY_DIR / "rows").exists()


def test_a_stage_that_fails_says_where_its_log_is(trained: Registry):
    shutil.rmtree(trained.root / "my-model")
    with pytest.raises(StageFailed, match="The repetition lies in .*reproductions/1"):
        again(trained)


@pytest.mark.parametrize(
    ("tag", "value", "error", "message"),
    [
        ("git.commit", None, ConfigError, "registered outside of git"),
        ("git.commit", "a" * 40, ConfigError, "is not in the repository of"),
        ("git.uncommitted", "tasks/sft.py", ConfigError, "does not have: tasks/sft.py. It cannot be reproduced"),
        (f"dvc.{RAW}.md5", None, DataError, "The content of data/raw/demo was not kept by DVC"),
        (f"dvc.{RAW}.md5", "0" * 32 + ".dir", DataError, "neither in the DVC cache nor in the remote|not in the DVC"),
        (f"dvc.{POLICY_DIR}.md5", None, ConfigError, "the pipeline did not register it"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(trained: Registry, tag, value, error, message):
    if value is None:
        trained.client.delete_model_version_tag(POLICY_MODEL, "1", tag)
    else:
        trained.client.set_model_version_tag(POLICY_MODEL, "1", tag, value)
    with pytest.raises(error, match=message):
        again(trained)


def test_settings_that_are_gone_are_said(trained: Registry):
    run = trained.client.get_run(trained.run_id)
    (Path(run.info.artifact_uri.removeprefix("file://")) / "params.yaml").unlink()
    with pytest.raises(DataError, match="its settings, params.yaml of run .*, are gone"):
        again(trained)
