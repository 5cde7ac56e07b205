"""Rollouts by hand, and a GRPO trainer small enough to run in a second."""

from typing import Any

import torch
from torch import Tensor

from rlcore.batches import join
from rlcore.configs import GRPOConfig
from rlcore.grpo import GRPOTrainer
from rlcore.rollout import Rollout
from rlcore.scratch import build_model
from tests.support.ppo import SHAPE, share_of_e
from tests.support.tiny import tiny_tokenizer

NAN = float("nan")


def config(**settings: Any) -> GRPOConfig:
    """Settings of a run of a second or two."""
    small = {
        "model_name": "an object is passed",
        "batch_size": 16,
        "mini_batch_size": 8,
        "num_generations": 4,
        "grpo_epochs": 2,
        "learning_rate": 3e-3,
        "max_new_tokens": 6,
        "num_iterations": 4,
        "save_every": 1,
        "eval_every": 2,
    }
    return GRPOConfig(**{**small, **settings})


def trainer(settings: GRPOConfig, **arguments: Any) -> GRPOTrainer:
    """A trainer of a fresh random policy; equal settings give equal trainers."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    defaults = {"tokenizer": tiny_tokenizer(), "model": model}
    if "environment" not in arguments:
        defaults["reward_fn"] = share_of_e
    return GRPOTrainer(settings, **{**defaults, **arguments})


def rollout(
    scores: list[float],
    group_ids: list[int] | None = None,
    *,
    lengths: list[int] | None = None,
    truncated: list[bool] | None = None,
    sampled: list[list[bool]] | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
) -> Rollout:
    """A rollout in float64: tokens 1, 2, 3, … behind a prompt of one token, all log-probabilities -1 unless given."""
    lengths = lengths or [1] * len(scores)
    sequences = join([[9]] * len(scores), [list(range(1, length + 1)) for length in lengths], 0, sampled)
    cut = torch.tensor(truncated or [False] * len(scores))
    flat = torch.full(sequences.response_mask.shape, -1.0, dtype=torch.float64)
    return Rollout(
        prompts=[],
        responses=[str(row) for row in range(len(scores))],
        group_ids=torch.tensor(group_ids or [0] * len(scores)),
        sequences=sequences,
        old_logprobs=flat if old_logprobs is None else old_logprobs,
        ref_logprobs=flat if ref_logprobs is None else ref_logprobs,
        old_values=None,
        bootstrap_values=torch.zeros(len(scores)),
        scores=torch.tensor(scores, dtype=torch.float64),
        reward_parts={},
        terminated=~cut,
        seconds={},
    )
