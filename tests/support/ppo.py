"""A PPO trainer small enough to run in a second, and rewards that a random policy can learn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.configs import PPOConfig, ScratchModelConfig
from rlcore.ppo import PPOTrainer
from rlcore.scratch import build_model
from tests.support.tiny import tiny_tokenizer

SHAPE = ScratchModelConfig(vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
PROMPTS = [f"What is {a} plus {b}?" for a in range(4) for b in range(4)]


def share_of_e(prompts: Sequence[str], responses: Sequence[str], metadata: object = None) -> list[float]:
    """Ten times the share of the letter e among the characters of each response."""
    return [10 * response.count("e") / max(len(response), 1) for response in responses]


def mean_letter(prompts: Sequence[str], responses: Sequence[str], metadata: object = None) -> list[float]:
    """Mean character code of each response, in tens: hardly two responses score alike."""
    return [sum(map(ord, response)) / max(len(response), 1) / 10 for response in responses]


def is_timing(metric: str) -> bool:
    """Whether a metric tells how fast something was, which no two runs share."""
    return metric.startswith(("time/", "throughput/"))


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that two equal runs share."""
    return {name: value for name, value in metrics.items() if not is_timing(name)}


def weights_of(trainer: PPOTrainer) -> dict[str, Tensor]:
    """A copy of the policy's weights, without the critic's."""
    return {name: weight.clone() for name, weight in trainer.model.base_model.state_dict().items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights have the same names and bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def make_critic_speak(trainer: PPOTrainer) -> None:
    """Give the critic something else than 0 to say."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        nn.init.normal_(trainer.model.value_head.output.weight)


@contextmanager
def running(config: PPOConfig, **arguments: Any) -> Iterator[tuple[PPOTrainer, list[tuple[int, dict[str, float]]]]]:
    """A tiny trainer that is closed at the end, and what it reports, in order."""
    reported: list[tuple[int, dict[str, float]]] = []
    trainer = tiny_trainer(config, on_metrics=lambda step, metrics: reported.append((step, dict(metrics))), **arguments)
    try:
        yield trainer, reported
    finally:
        trainer.close()


def iterations(reported: Sequence[tuple[int, Mapping[str, float]]]) -> list[Mapping[str, float]]:
    """Of what was reported, the metrics of each iteration that trained."""
    return [metrics for _, metrics in reported if "policy/loss" in metrics]


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
    fresh = {
        "tokenizer": tiny_tokenizer(),
        "model": build_model(SHAPE, tiny_tokenizer(), seed=1),
        "reward_fn": share_of_e,
    }
    return PPOTrainer(config, **{**fresh, **arguments})
