"""Real training from data to champion and back: better data win, poisoned data are refused, a rollback undoes."""

import getpass
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from rlcore.configs import DemoDataConfig
from tasks.demos import arithmetic
from tasks.records.artifacts import EVALUATE, read_json, read_rows, write_rows
from tasks.registry.store import POLICY_MODEL
from tests.support.checkout import ROOT, environment, processes_in

pytestmark = pytest.mark.long

OWN = "data/raw/own"
SHORT = f"""
validate: {{source: {OWN}}}
sft: {{max_steps: 500}}
ppo: {{num_iterations: 12, batch_size: 128, mini_batch_size: 64}}
evaluate: {{samples_per_prompt: 2}}
gate: {{min_gain: {{gold: 0.1}}}}
"""
"""The demo's recipe cut to a third: two minutes on an idle core, and still a gain of 0.4 in gold.

Better demonstrations leave less to gain over them in numbers, so the gate asks for gold alone.
"""
HURRIED, CAREFUL = 0.6, 0.0
"""Share of the larger sums that are wrong in the demonstrations."""


@dataclass
class Story:
    """What was done one after the other in a checkout, and what it said."""

    root: Path
    said: dict[str, str]
    measured: dict[str, Mapping[str, float]]
    champions: dict[str, str | None]

    @property
    def client(self) -> MlflowClient:
        """Of the checkout's registry."""
        return MlflowClient(f"sqlite:///{self.root}/.rlhf/mlflow.db")

    def version(self, number: str) -> ModelVersion:
        """Of the policy."""
        return self.client.get_model_version(POLICY_MODEL, number)

    def run(self, step: str, *arguments: str, code: int = 0) -> None:
        """Let `rlhf` do something, and keep what it said, measured and left as champion."""
        command = [sys.executable, "-m", "rlcore.cli.main", *arguments]
        settings = {**environment(self.root), "PYTHONPATH": str(self.root)}
        done = subprocess.run(
            command, cwd=self.root, env=settings, capture_output=True, text=True, timeout=3000, check=False
        )
        self.said[step] = done.stdout + done.stderr
        assert done.returncode == code, self.said[step]
        if (self.root / EVALUATE).exists():
            self.measured[step] = read_json(self.root / EVALUATE)
        aliases = self.client.get_registered_model(POLICY_MODEL).aliases
        self.champions[step] = str(aliases["champion"]) if "champion" in aliases else None

    def bring_data(self, slip_share: float, *, swapped: bool = False) -> None:
        """Put data in the place of those that are there, with the labels of all pairs as they are or swapped."""
        made = self.root / ".rlhf" / "made"
        arithmetic.generate(DemoDataConfig(demonstrations=4000, preference_pairs=4000, slip_share=slip_share), made)
        for name in ("demonstrations", "prompts"):
            shutil.copy(made / f"{name}.jsonl", self.root / OWN)
        pairs = read_rows(made / "preferences.jsonl")
        if swapped:
            pairs = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in pairs]
        write_rows(made / "pairs.jsonl", pairs)
        self.run("data", "data", "add", str(made / "pairs.jsonl"), "--replace")

    def commit(self, text: str) -> None:
        """Commit all that git does not ignore."""
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        for arguments in (["add", "-A"], [*identity, "commit", "-qm", text]):
            subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True)


def clone(folder: Path) -> Path:
    """A repository with the files of this checkout, whether committed or not, as its only commit."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Hurried data → promoted → careful data → promoted → poisoned labels → refused → back → the first again."""
    story = Story(clone(tmp_path_factory.mktemp("promotion") / "checkout"), {}, {}, {})
    (story.root / "short.yaml").write_text(SHORT)
    (story.root / OWN).mkdir(parents=True)
    story.client.create_registered_model(POLICY_MODEL)
    pipeline = ("pipeline", "run", "--params", "short.yaml")
    story.bring_data(HURRIED)
    story.commit("first data")
    story.run("first", *pipeline)
    story.run("promote first", "promote")
    story.bring_data(CAREFUL)
    with (story.root / "tasks" / "sft.py").open("a") as code:
        code.write("# the code moves on\n")
    story.commit("second data")
    story.run("second", *pipeline)
    story.run("promote second", "promote")
    story.bring_data(CAREFUL, swapped=True)
    story.run("poison", *pipeline)
    story.run("promote poison", "promote", "3", code=1)
    story.run("back", "rollback")
    story.run("again", "reproduce", "1")
    yield story
    assert processes_in(story.root) == []


def test_the_first_policy_becomes_champion(story: Story):
    assert story.measured["first"]["gold/gain_low"] > 0.1
    assert "Version 1 of rlhf-policy is champion; there was none before." in story.said["promote first"]


def test_better_data_win_by_the_paired_gate_and_move_the_champion(story: Story):
    assert story.measured["second"]["win/rate_over_champion_low"] > 0.5
    assert story.champions["second"] == "1"
    assert story.champions["promote second"] == "2"
    tags = story.version("2").tags
    assert (tags["gate.passed"], tags["parent.champion"]) == ("true", "rlhf-policy/1")
    assert (tags["promotion.previous"], tags["promotion.verified"]) == ("1", "true")
    assert tags["promotion.actor"] == getpass.getuser()


def test_poisoned_pairs_are_refused_with_reasons_in_terminal_tags_and_card(story: Story):
    poison = story.measured["poison"]
    assert poison["gold/policy"] < poison["gold/sft"]
    # Held-out pairs are poisoned too, so only the checker and the champion can tell.
    assert poison["reward_model/accuracy"] > 0.7
    version = story.version("3")
    assert not version.aliases
    assert version.tags["gate.passed"] == "false"
    for rule in ("gold/gain", "win/rate_over_champion_low"):
        assert version.tags[f"gate.{rule}"].endswith("refused")
        assert version.tags[f"gate.{rule}"] in story.said["poison"]
        assert f"| {rule} | " in version.description
    assert "**Gate: refused**" in version.description
    assert "data/metrics/figures/comparison.png" in version.description
    assert story.champions["poison"] == "2"


def test_a_refused_version_is_not_promoted(story: Story):
    assert story.said["promote poison"].startswith("rlhf: rlhf-policy version 3: the gate refused it (")
    assert "gold/gain: -" in story.said["promote poison"]
    assert story.champions["promote poison"] == "2"


def test_rollback_brings_the_first_champion_back(story: Story):
    assert "Version 1 of rlhf-policy is champion again; before it was version 2." in story.said["back"]
    assert story.champions["back"] == "1"


def test_a_version_of_an_earlier_commit_is_reproduced_to_the_bit(story: Story):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=story.root, capture_output=True, text=True, check=True)
    assert story.version("1").tags["git.commit"] != head.stdout.strip()
    assert "version 1 is reproduced" in story.said["again"]
    assert not (story.root / ".rlhf" / "reproductions" / "1").exists()


def test_the_lineage_of_the_second_champion_names_its_data_and_parents(story: Story):
    story.run("lineage", "lineage", "2", "--json")
    found = json.loads(story.said["lineage"])
    assert found["measured_against"] == "rlhf-policy/1"
    assert found["parents"]["reward"]["data"].keys() >= {"data/validated/preferences"}
