"""Each trainer for 20 steps as a stage: killed and taken up, it ends with the same bits, numbers and answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, PPOConfig, RewardModelConfig, SFTConfig, StageConfig
from tasks.dpo import train_dpo
from tasks.grpo import train_grpo
from tasks.orpo import train_orpo
from tasks.ppo import train_ppo
from tasks.records.artifacts import POLICY_DIR, REWARD_DIR, SAMPLES, SFT_DIR, TRACES, content_md5, read_rows
from tasks.records.stage import StageRun
from tasks.reward import train_reward
from tasks.sft import train_sft
from tests.support.workspace import make_training_workspace

STEPS, SAVE_EVERY, KILLED_AT = 20, 8, 13
# 8 pairs in batches of 4 are 2 steps an epoch.
PAIRS = {"batch_size": 4, "gradient_accumulation_steps": 1, "num_epochs": 10, "logging_steps": 1, "max_length": 64}
SAVED = {"eval_every": 10, "save_every": SAVE_EVERY}
SAMPLED = {"batch_size": 8, "mini_batch_size": 4, "num_iterations": STEPS, "max_new_tokens": 4, **SAVED}


class Case(NamedTuple):
    train: Callable[[Any], None]
    config: type[StageConfig]
    settings: dict[str, Any]
    stage: str = "policy"
    folder: Path = POLICY_DIR


CASES = {
    "sft": Case(
        train_sft, SFTConfig,
        {"max_steps": STEPS, "batch_size": 4, "max_length": 64, "logging_steps": 1, "save_steps": SAVE_EVERY},
        "sft", SFT_DIR,
    ),
    "reward": Case(
        train_reward, RewardModelConfig,
        {**PAIRS, "save_steps": SAVE_EVERY, "reference_samples": 6, "reference_max_new_tokens": 4},
        "reward", REWARD_DIR,
    ),
    "ppo": Case(train_ppo, PPOConfig, SAMPLED),
    "grpo": Case(train_grpo, GRPOConfig, {**SAMPLED, "num_generations": 4}),
    "dpo": Case(train_dpo, DPOConfig, {**PAIRS, **SAVED, "max_prompt_length": 32}),
    "orpo": Case(train_orpo, ORPOConfig, {**PAIRS, **SAVED, "max_prompt_length": 32}),
}  # fmt: skip


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("name", CASES)
def test_a_killed_stage_goes_on_and_ends_like_one_that_was_not(name, tmp_path, monkeypatch):
    case = CASES[name]
    config = case.config(model_name=str(SFT_DIR), **case.settings)
    monkeypatch.chdir(make_training_workspace(tmp_path / "whole"))
    start = content_md5(SFT_DIR)
    case.train(config)
    whole = published(case)
    assert max(step for step, _ in whole["trace"]) == STEPS
    assert content_md5(case.folder) != start

    monkeypatch.chdir(make_training_workspace(tmp_path / "killed"))
    before = content_md5(case.folder)
    with monkeypatch.context() as patch:
        patch.setattr(StageRun, "log", killed_at(KILLED_AT))
        with pytest.raises(Killed):
            case.train(config)
    assert content_md5(case.folder) == before
    steps = []
    monkeypatch.setattr(StageRun, "log", noting(steps))
    case.train(config)
    assert SAVE_EVERY <= min(step for step in steps if step) <= KILLED_AT
    assert published(case) == whole


def published(case: Case) -> dict[str, Any]:
    """What a stage leaves, less the time and memory that it took."""
    trace = [
        (
            row["step"],
            {name: value for name, value in row.items() if not name.startswith(("time", "throughput/", "memory/"))},
        )
        for row in read_rows(TRACES[case.stage])
    ]
    samples = read_rows(SAMPLES[case.stage]) if case.stage in SAMPLES else []
    return {"model": content_md5(case.folder), "trace": trace, "samples": samples}


def killed_at(fatal: int) -> Callable[..., None]:
    """A `log` that reports a step and does not come back."""
    log = StageRun.log

    def report(run, step, metrics):
        log(run, step, metrics)
        if step == fatal:
            raise Killed

    return report


def noting(steps: list[int]) -> Callable[..., None]:
    """A `log` that keeps the steps."""
    log = StageRun.log

    def report(run, step, metrics):
        steps.append(step)
        log(run, step, metrics)

    return report
