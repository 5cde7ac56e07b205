"""The shell blocks of the documents run as they stand, but for the names of models, and write what they say."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlcore.cli.main import main
from rlcore.models import load_causal_lm
from tests.support import stand_ins
from tests.support.checkout import ROOT
from tests.support.documents import ENGLISH, PORTUGUESE, PPO_PAGE, SPANISH, text_of
from tests.support.llm import write_rows

QWEN, GEMMA2, GEMMA3 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "google/gemma-2-2b", "google/gemma-3-270m"
PAIRS = [{"prompt": f"Say {n}.", "chosen": f"Here is {n}.", "rejected": "no"} for n in range(16)]


def commands(text: str) -> list[str]:
    """The commands of a page, each with its continuation lines."""
    return [match[0].strip() for match in re.finditer(r"^aitraining (?:.*\\\n)*.*$", text, re.MULTILINE)]


class Shell:
    """The commands of a page, and a folder of a tiny model for each that they name."""

    def __init__(self, shared: Path, models: dict[str, Path]):
        self._shared, self._models = shared, models

    def command(self, document: str, number: int) -> str:
        """A command of a page with the names of models replaced."""
        command = commands(text_of(self._shared, document))[number]
        for name, folder in self._models.items():
            command = command.replace(name, str(folder))
        return command

    def run(self, document: str, number: int) -> None:
        """Run it in this process; its first word is the script."""
        words = shlex.split(self.command(document, number).replace("\\\n", " "))
        assert words[0] == "aitraining"
        assert main(words[1:]) == 0

    def moved(self, folder: str, name: str) -> bool:
        """Whether a folder holds an ordinary language model with other weights than the one of that name."""
        start, trained = load_causal_lm(self._models[name]).state_dict(), AutoModelForCausalLM.from_pretrained(folder)
        return any(not torch.equal(weight, start[key]) for key, weight in trained.state_dict().items())


@pytest.fixture(scope="module")
def stand_in_models(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    makers = {QWEN: stand_ins.qwen2, GEMMA2: stand_ins.gemma2, GEMMA3: stand_ins.gemma3}
    return {name: make(place / make.__name__) for name, make in makers.items()}


@pytest.fixture
def shell(shared, stand_in_models, tmp_path, monkeypatch) -> Shell:
    """The pages, in a folder with the files that they name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    write_rows(tmp_path / "prompts.jsonl", [{"text": row["prompt"]} for row in PAIRS])
    for name in ("preferences.jsonl", "preference_data.jsonl", "data/train.jsonl"):
        write_rows(tmp_path / name, PAIRS)
    return Shell(shared, stand_in_models)


def make_reward_model(shell: Shell, folder: str) -> None:
    """What the pages call for where they name a reward model that another page trained."""
    model = shell._models[GEMMA2 if folder.startswith("my") else GEMMA3]
    argv = ["llm", "--train", "--trainer", "reward", "--model", str(model), "--project-name", folder]
    assert main([*argv, "--data-path", "preferences.jsonl"]) == 0


def test_the_pages_have_these_commands(shared):
    pages = {page: commands(text_of(shared, page)) for page in (ENGLISH, SPANISH, PORTUGUESE, PPO_PAGE)}
    assert {page: len(found) for page, found in pages.items()} == {ENGLISH: 4, SPANISH: 3, PORTUGUESE: 3, PPO_PAGE: 3}
    # what runs below is all that the other languages have
    assert set(pages[SPANISH]) == set(pages[PORTUGUESE]) < set(pages[ENGLISH])


def test_the_quick_start_of_ppo(shell):
    make_reward_model(shell, "reward-model")
    shell.run(PPO_PAGE, 0)
    assert shell.moved("ppo-model", GEMMA3)


def test_the_recipe_trains_a_reward_model_and_then_the_policy_that_it_judges(shell, tmp_path):
    shell.run(PPO_PAGE, 1)
    assert AutoModelForSequenceClassification.from_pretrained("reward-model").config.num_labels == 1
    shell.run(PPO_PAGE, 2)
    assert shell.moved("ppo-model", GEMMA3)
    assert {"ppo-model", "reward-model"} < {path.name for path in tmp_path.iterdir()}
    assert list(tmp_path.glob("*checkpoints*")) == []


def test_ppo(shell):
    make_reward_model(shell, "my-reward-model")
    shell.run(ENGLISH, 0)
    assert shell.moved("project-name", GEMMA2)


def test_grpo(shell, caplog):
    shell.run(ENGLISH, 1)
    # a random policy of letters never asks the desk: no score differs, so the weights stay where they are
    assert not shell.moved("project-name", QWEN)
    assert "max_turns=1: call_tool() of the environment is never run" in caplog.text


def test_dpo(shell):
    shell.run(ENGLISH, 2)
    assert shell.moved("project-name", GEMMA2)


def test_reward_model(shell):
    shell.run(ENGLISH, 3)
    assert AutoModelForSequenceClassification.from_pretrained("project-name").config.num_labels == 1


def test_the_second_name_is_the_same_program():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["aitraining"] == scripts["rlhf"] == "rlcore.cli.main:main"


def test_a_shell_runs_the_block_as_it_stands(shell, tmp_path):
    """With comments and continuation lines, and each command a process of its own."""
    script = tmp_path / "bin/aitraining"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom rlcore.cli.main import main\nsys.exit(main())\n")
    script.chmod(0o755)
    block = f"# {PPO_PAGE}\n{shell.command(PPO_PAGE, 1)}\n"
    environment = {"PATH": f"{script.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euc", block], env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-2:-1] == ["Wrote the reward model of step 2 to reward-model."]
    assert done.stdout.splitlines()[-1].startswith("Next: rlhf llm --train --trainer ppo ")
