"""The Python blocks of the PPO page run, and do what they say."""

from pathlib import Path

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore import RewardModelConfig, trainer_for
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from rlcore.models import load_causal_lm
from tests.support.documents import PPO_PAGE, Page, text_of

PROMPT_LINES = (107, 109)
"""Where the page shows the rows of a file of prompts."""


@pytest.fixture
def prompts(cli_page: Page, shared):
    """The file ./prompts.jsonl, as the page shows it."""
    first, last = PROMPT_LINES
    lines = text_of(shared, PPO_PAGE).splitlines()[first - 1 : last]
    Path("prompts.jsonl").write_text("\n".join(lines) + "\n")
    return lines


@pytest.fixture
def reward_model(cli_page: Page, models):
    """The folder ./reward-model, as training on preferences writes it."""
    columns = {"prompt": ["Say it."] * 4, "chosen": ["Yes."] * 4, "rejected": ["no"] * 4}
    data = datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)})
    config = RewardModelConfig(model_name=str(models["google/gemma-3-270m"]), num_epochs=1)
    trainer_for("reward")(config, data, Path("reward-model"))


def test_python_api(cli_page: Page, prompts, reward_model, models, capsys):
    names = cli_page.run("python_api")
    assert len(prompts) == 3
    # "ppo-model" lies where project_name says, and is an ordinary model that has learned something
    trained = AutoModelForCausalLM.from_pretrained("ppo-model")
    start = load_causal_lm(models["google/gemma-3-270m"]).state_dict()
    assert any(not torch.equal(weight, start[name]) for name, weight in trained.state_dict().items())
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["ppo-model", "prompts.jsonl", "reward-model"]
    assert isinstance(names["project"], AutoTrainProject)
    said = capsys.readouterr().out
    assert "ppo-model" in said
    assert 'from_pretrained("ppo-model")' in said


def test_multi_objective_rewards(cli_page: Page, models):
    # The page leaves arguments out with a bare `...`; here are some for it.
    model = repr(str(models["google/gemma-3-270m"]))
    given = f'model={model}, model_ref={model}, data_path="sums.jsonl", rl_chunk_size=8, rl_temperature=0.5,'
    code = cli_page.code("multi_objective_rewards").replace("...", given)
    Path("sums.jsonl").write_text('{"text": "What is 2 + 2?", "answer": "4"}\n')
    names = {"LLMTrainingParams": LLMTrainingParams}
    exec(code, names)
    assert names["params"].rl_reward_weights == {"correctness": 1.0, "formatting": 0.1}
    folder = AutoTrainProject(names["params"], process=True).create()
    AutoModelForCausalLM.from_pretrained(folder)
