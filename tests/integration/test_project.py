"""Each trainer from the documents' settings: rows from a file, a model folder where project_name says."""

import json
import sys
from pathlib import Path

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from rlcore.errors import DataError
from rlcore.models import load_causal_lm
from rlcore.reward.classifier import reward_model_source
from tests.support import stand_ins

PAIRS = [{"question": f"Say {n}.", "good": f"Here is {n}.", "bad": "no"} for n in range(8)]
COLUMNS = {"prompt_text_column": "question", "text_column": "good"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return stand_ins.gemma3(tmp_path_factory.mktemp("models") / "gemma3")


@pytest.fixture(autouse=True)
def _in_a_folder_with_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))


def create(model: Path, **settings) -> Path:
    params = LLMTrainingParams(
        model=str(model), **{"data_path": "pairs.jsonl", "project_name": "out", "lr": 1e-2, **settings}
    )
    return AutoTrainProject(params, backend="local", process=True).create()


def moved(folder: Path, start: Path) -> bool:
    """Whether a folder holds a causal language model with other weights than the one it started from."""
    before, after = load_causal_lm(start).state_dict(), AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        ("default", COLUMNS),
        ("sft", COLUMNS),
        ("dpo", {**COLUMNS, "rejected_text_column": "bad", "peft": True}),
        ("orpo", {**COLUMNS, "rejected_text_column": "bad", "epochs": 2}),
    ],
)
def test_a_policy_from_rows(model, tmp_path, capsys, trainer, settings):
    folder = create(model, trainer=trainer, **settings)
    assert moved(folder, model)
    assert folder == Path("out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pairs.jsonl"]  # no checkpoints are left
    assert capsys.readouterr().out.splitlines()[-1].endswith('from_pretrained("out")')


def test_a_reward_model_tells_the_responses_apart_and_says_who_uses_it(model, capsys):
    create(model, trainer="reward", epochs=30, project_name="reward-model", rejected_text_column="bad", **COLUMNS)
    assert 'rl_reward_model_path="reward-model"' in capsys.readouterr().out
    good, bad = reward_model_source("reward-model")(["Say 3.", "Say 3."], ["Here is 3.", "no"])
    assert good > bad


def test_each_kind_of_reward_trains_another_policy(model, tmp_path, monkeypatch):
    create(model, trainer="reward", project_name="reward-model", rejected_text_column="bad", **COLUMNS)
    (tmp_path / "digit_rewards.py").write_text("def digits(prompts, responses): return [len(x) % 3 for x in responses]")
    monkeypatch.syspath_prepend(str(tmp_path))
    components = {"vowels": {"type": "keyword", "keywords": list("aeiou")}, "length": {"type": "length"}}
    reference, environment = {"model_ref": str(model)}, {"reward_components": components}
    rewards = {
        "length": reference,
        "function": reference | {"rl_reward_fn": "digit_rewards:digits"},
        "model": {"rl_reward_model_path": "reward-model"},
        "sum": {
            "rl_reward_model_path": "reward-model",
            "rl_multi_objective": True,
            "rl_reward_weights": '{"reward_model": 1, "digit_rewards:digits": 2}',
        },
        "environment": reference | {"rl_env_type": "multi_objective", "rl_env_config": environment},
        "weights": reference
        | {"rl_env_type": "multi_objective", "rl_env_config": environment, "rl_reward_weights": {"length": 9.0}},
    }
    short = {"trainer": "ppo", "text_column": "question", "rl_chunk_size": 8, "rl_max_new_tokens": 6}
    folders = [create(model, project_name=name, **short, **settings) for name, settings in rewards.items()]
    weights = {tuple(load_causal_lm(folder).get_output_embeddings().weight.flatten().tolist()) for folder in folders}
    assert len(weights) == len(rewards)


def test_an_environment_of_ones_own(model, tmp_path, monkeypatch):
    (tmp_path / "greeting_envs.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"rl_env_module": "greeting_envs", "rl_env_class": "Greeting", "rl_env_config": '{"word": "hello"}'}
    folder = create(model, trainer="grpo", data_path="data", rl_max_new_tokens=4, **settings)
    assert moved(folder, model)
    assert sys.modules["greeting_envs"].asked == {"hello"}


ENVIRONMENT = """
import datasets

asked = set()


class Greeting:
    def __init__(self, word):
        self.word = word

    def build_dataset(self, tokenizer):
        return datasets.Dataset.from_dict({"prompt": ["Greet me.", "Greet her."]})

    def score_episode(self, model, tokenizer, completion, case_idx):
        asked.add(self.word)
        return float(len(completion) % 7) + case_idx

    def get_tools(self):
        return []
"""


def test_the_best_model_on_the_validation_rows_is_kept_and_checkpoints_stay_where_asked(model, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    datasets.Dataset.from_list(PAIRS).to_csv(folder / "train.csv")
    datasets.Dataset.from_list(PAIRS[:2]).to_parquet(folder / "valid.parquet")
    create(
        model, trainer="dpo", data_path="data", valid_split="valid", rejected_text_column="bad",
        resume_from_checkpoint="auto", **COLUMNS,
    )  # fmt: skip
    assert any((tmp_path / "out-checkpoints").iterdir())


def test_a_wrong_column_ends_the_run_before_anything_is_written(model, tmp_path):
    with pytest.raises(DataError, match="expected answer"):
        create(model, trainer="sft", text_column="answer")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]
