"""Rewards in units of the reference model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from rlcore.reward import RewardModelSource
from rlcore.reward.training import train
from tests.support.reward_training import PROMPTS, pairs, save_start, settings


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small causal language model."""
    return save_start(tmp_path_factory.mktemp("start"))


def test_rewards_get_mean_0_and_deviation_1_on_the_reference(start, tmp_path):
    rows: list[dict[str, Any]] = []
    config = settings(start, num_epochs=1, reference_samples=20, reference_max_new_tokens=8)
    arguments = (config, pairs(), tmp_path / "model")
    train(*arguments, reference=start, on_samples=lambda _step, samples: rows.extend(samples))
    # 20 samples of 14 prompts: every prompt once, then 6 of them again
    assert sorted(row["prompt"] for row in rows[:14]) == sorted(PROMPTS)
    assert len(rows) == 20
    source = RewardModelSource(tmp_path / "model")
    scores = source([row["prompt"] for row in rows], [row["response"] for row in rows])
    assert scores == pytest.approx([row["score"] for row in rows], abs=1e-5)
    assert torch.tensor(scores).mean().item() == pytest.approx(0.0, abs=1e-5)
    assert torch.tensor(scores).std(unbiased=False).item() == pytest.approx(1.0, abs=1e-5)
    again: list[dict[str, Any]] = []
    train(
        *arguments[:2],
        tmp_path / "again",
        reference=LlamaForCausalLM.from_pretrained(start),
        on_samples=lambda _step, samples: again.extend(samples),
    )
    assert again == rows
