"""The stages that train, each as a whole: from validated rows to a published model, its trace and its samples."""

import pytest
import torch

from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, PPOConfig, RewardModelConfig, SFTConfig
from rlcore.models import load_causal_lm
from tasks.dpo import train_dpo
from tasks.grpo import train_grpo
from tasks.orpo import train_orpo
from tasks.ppo import train_ppo
from tasks.records.artifacts import (
    POLICY_DIR,
    PREFERENCES,
    REWARD_DIR,
    SAMPLES,
    SFT_DIR,
    TRACES,
    read_rows,
)
from tasks.records.trace import last_values
from tasks.reward import train_reward
from tasks.sft import train_sft
from tests.support.metric_names import unexplained
from tests.support.workspace import make_training_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A checkout with rows to train on, and the working directory."""
    make_training_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["all weights", "adapters"])
def test_sft_starts_from_a_folder_and_publishes_one_that_others_start_from(workspace, lora):
    before = load_causal_lm(SFT_DIR).state_dict()
    train_sft(SFTConfig(model_name=str(SFT_DIR), max_steps=2, warmup_steps=0, batch_size=4, max_length=64, lora=lora))
    # adapters are merged: whoever starts from here needs to know nothing of them
    after = load_causal_lm(SFT_DIR).state_dict()
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert (SFT_DIR / "adapter").is_dir() == (lora is not None)
    metrics = last_values(read_rows(TRACES["sft"]))
    assert metrics["best/step"] == 2
    assert metrics["best/validation/loss"] == metrics["validation/loss"] > 0
    assert unexplained(set(metrics), ("gold",)) == set()


def test_reward_keeps_the_answers_that_set_its_scale(workspace):
    config = RewardModelConfig(
        model_name=str(SFT_DIR), max_length=64, batch_size=4, num_epochs=1, reference_samples=6,
        reference_max_new_tokens=4,
    )  # fmt: skip
    train_reward(config)
    samples = read_rows(SAMPLES["reward"])
    assert len(samples) == 6
    # Scores of these answers are what mean 0 and deviation 1 refer to.
    assert sum(row["score"] for row in samples) == pytest.approx(0.0, abs=1e-9)
    assert {"step", "prompt", "response"} < set(samples[0])
    assert (REWARD_DIR / "config.json").exists()
    metrics = last_values(read_rows(TRACES["reward"]))
    assert "validation/accuracy" in metrics
    assert unexplained(set(metrics), ("gold",)) == set()


def test_ppo_keeps_the_answers_of_its_evaluations(workspace):
    config = PPOConfig(
        model_name=str(SFT_DIR), batch_size=8, mini_batch_size=4, num_iterations=2, eval_every=1, max_new_tokens=4
    )
    train_ppo(config)
    assert {row["step"] for row in read_rows(SAMPLES["policy"])} == {0, 1, 2}
    assert_published_and_explained()


def assert_published_and_explained():
    """A whole policy, a trace of which the page explains every name, and the seconds that it took."""
    assert (POLICY_DIR / "config.json").exists()
    metrics = last_values(read_rows(TRACES["policy"]))
    assert unexplained(set(metrics), ("gold",)) == set()
    assert {"best/step", "time/stage_s"} <= set(metrics)


@pytest.mark.parametrize("reward_function", ["null", "tasks.demos.arithmetic:gold"])
def test_grpo_learns_from_the_reward_model_or_from_the_checker(workspace, reward_function):
    params = (workspace / "params.yaml").read_text().replace("algorithm: ppo", "algorithm: grpo")
    (workspace / "params.yaml").write_text(
        params.replace("reward_function: null", f"reward_function: {reward_function}")
    )
    config = GRPOConfig(
        model_name=str(SFT_DIR), batch_size=8, mini_batch_size=4, num_generations=4, num_iterations=1, eval_every=1,
        max_new_tokens=4,
    )  # fmt: skip
    train_grpo(config)
    scores = {row["score"] for row in read_rows(SAMPLES["policy"])}
    # A model with random weights is never right; a reward model scores as many answers as there are.
    assert (scores == {0.0}) == (reward_function != "null")
    assert_published_and_explained()


PAIRS = {"model_name": str(SFT_DIR), "batch_size": 4, "gradient_accumulation_steps": 1, "eval_every": 1}
LENGTHS = {"max_length": 64, "max_prompt_length": 32}


@pytest.mark.parametrize(
    ("train", "config"),
    [(train_dpo, DPOConfig(**PAIRS, **LENGTHS)), (train_orpo, ORPOConfig(**PAIRS, **LENGTHS))],
    ids=["dpo", "orpo"],
)
def test_a_trainer_on_pairs_answers_the_prompts_of_the_validation_pairs(workspace, train, config):
    train(config)
    samples = read_rows(SAMPLES["policy"])
    # Eight pairs in batches of four: two steps, each evaluated.
    assert {row["step"] for row in samples} == {1, 2}
    assert {row["prompt"] for row in samples} == {row["prompt"] for row in read_rows(PREFERENCES["validation"])}
    assert "validation/loss" in last_values(read_rows(TRACES["policy"]))
    assert_published_and_explained()
