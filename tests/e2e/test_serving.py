"""`rlhf promote`, `rlhf rollback` and `rlhf serve` as processes: the server answers with the champion of its start."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.records.artifacts import PIPELINE, POLICY_DIR, write_text
from tests.support.checkout import environment, processes_in
from tests.support.registry import Registry
from tests.support.workspace import make_workspace, save_model

pytestmark = pytest.mark.long

REQUEST = {"messages": [{"role": "user", "content": "Add 1 and 2."}], "max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Version 1 is champion; version 2, another model, was measured against it."""
    root = make_workspace(tmp_path_factory.mktemp("serving") / "checkout")
    write_text(root / PIPELINE, "stages: {}\n")
    (root / ".rlhf").mkdir()
    uri = f"sqlite:///{root}/.rlhf/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        client = MlflowClient(uri)
        experiment = client.create_experiment("rlhf-pipeline", (root / ".rlhf" / "mlflow-artifacts").as_uri())
        registry = Registry(root, client, experiment)
        registry.keep(POLICY_DIR)
        registry.register()
        assert "Version 1 of rlhf-policy is champion; there was none before." in rlhf(root, "promote")
        save_model(root / POLICY_DIR, 5)
        registry.keep(POLICY_DIR)
        registry.register()
        yield registry


def start(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rlcore.cli.main", *arguments]
    return subprocess.Popen(
        command, cwd=root, env=environment(root), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rlhf(root: Path, *arguments: str, code: int = 0) -> str:
    process = start(root, *arguments)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == code, said
    return said


@contextmanager
def served(root: Path) -> Iterator[tuple[str, str]]:
    """Version and address of a server, for as long as the block."""
    process = start(root, "serve", "--port", "0")
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"rlhf-policy version (\d+): (http://\S+/invocations)\n", line)
        assert found, line + process.stdout.read()
        yield found[1], found[2]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert processes_in(root) == []


def answer(url: str) -> str:
    request = urllib.request.Request(url, json.dumps(REQUEST).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def test_the_champion_answers_before_and_after_a_promotion_and_a_rollback_takes_it_back(checkout: Registry):
    root = checkout.root
    with served(root) as (version, url):
        assert version == "1"
        before = answer(url)
    assert "Version 2 of rlhf-policy is champion; before it was version 1." in rlhf(root, "promote", "2")
    with served(root) as (version, url):
        assert version == "2"
        assert answer(url) != before
    assert "Version 1 of rlhf-policy is champion again; before it was version 2." in rlhf(root, "rollback")
    assert checkout.at("champion") == "1"


def test_what_cannot_be_promoted_is_said_in_one_line(checkout: Registry):
    assert rlhf(checkout.root, "promote", "9", code=2) == (
        "rlhf: rlhf-policy has no '9'. Name one of 2, 1, or an alias.\n"
    )
    assert os.path.exists(checkout.root / ".rlhf" / "registry.lock")


def test_the_lineage_is_printed(checkout: Registry):
    assert json.loads(rlhf(checkout.root, "lineage", "2", "--json"))["measured_against"] == "rlhf-policy/1"
    assert "rlhf-policy version 2" in rlhf(checkout.root, "lineage", "2")
