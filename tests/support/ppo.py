"""A PPO trainer small enough to run in a second, and rewards that a random policy can learn."""

from collections.abc import Sequence
from typing import Any

from rlcore.configs import PPOConfig, ScratchModelConfig
from rlcore.ppo import PPOTrainer
from rlcore.scratch import build_model
from tests.support.tiny import tiny_tokenizer

SHAPE = ScratchModelConfig(vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
PROMPTS = [f"What is {a} plus {b}?" for a in range(4) for b in range(4)]


def share_of_e(prompts: Sequence[str], responses: Sequence[str], metadata: object = None) -> list[float]:
    """Ten times the share of the letter e among the characters of each response."""
    return [10 * response.count("e") / max(len(response), 1) for response in responses]


def tiny_config(**settings: Any) -> PPOConfig:
    """Settings of a run of a second or two."""
    small = {
        "model_name": "an object is passed",
        "batch_size": 16,
        "mini_batch_size": 8,
        "ppo_epochs": 2,
        "learning_rate": 3e-3,
        "gamma": 1.0,
        "max_new_tokens": 6,
        "temperature": 1.0,
        "top_p": 1.0,
        "num_iterations": 4,
        "kl_penalty_coef": 0.05,
        "kl_target": 2.0,
        "kl_target_unit": "sequence",
        "kl_horizon": 100,
        "entropy_coef": 0.0,
        "save_every": 1,
        "eval_every": 2,
    }
    return PPOConfig(**{**small, **settings})


def tiny_trainer(config: PPOConfig, **arguments: Any) -> PPOTrainer:
    """A trainer of a fresh random policy; equal configs give equal trainers."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    return PPOTrainer(config, tokenizer=tiny_tokenizer(), model=model, **{"reward_fn": share_of_e, **arguments})
