"""The learning half of a PPO iteration: advantages once, then optimiser steps over shuffled mini-batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rlcore.batches import Sequences
from rlcore.configs import PPOConfig
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.functional.advantages import gae, token_rewards
from rlcore.functional.kl import k1
from rlcore.functional.losses import (
    clip_fraction,
    clipped_value_loss,
    ppo_policy_loss,
    ppo_total_loss,
    probability_ratio,
)
from rlcore.functional.masking import masked_mean, whiten
from rlcore.health import NonFiniteGuard
from rlcore.rollout import Rollout, policy_of
from rlcore.streams import permutation

Loss = Callable[["Experience", int, PPOConfig, nn.Module], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, eq=False)
class Experience:
    """What the loss needs of some responses: tensors [B, T], the advantages whitened over the whole iteration."""

    sequences: Sequences
    old_logprobs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor

    def select(self, rows: list[int]) -> "Experience":
        """The given rows."""
        index = torch.tensor(rows, device=self.old_logprobs.device)
        return Experience(
            self.sequences.select(index),
            self.old_logprobs[index],
            self.old_values[index],
            self.advantages[index],
            self.returns[index],
        )


def experience_of(rollout: Rollout, config: PPOConfig, kl_coef: float) -> Experience:
    """Token rewards (KL penalty, score on the last real token), GAE and whitened advantages of a rollout."""
    mask = rollout.response_mask
    rewards = token_rewards(rollout.kl, rollout.scores, mask, kl_coef=kl_coef)
    advantages, returns = gae(
        rewards, rollout.old_values, mask, rollout.bootstrap_values, gamma=config.gamma, lam=config.lam
    )
    return Experience(rollout.sequences, rollout.old_logprobs, rollout.old_values, whiten(advantages, mask), returns)


def update_policy(
    client: AsyncTrainingClient,
    optimizer: torch.optim.Optimizer,
    guard: NonFiniteGuard,
    experience: Experience,
    config: PPOConfig,
    iteration: int,
) -> dict[str, float]:
    """All optimiser steps of one iteration, in an order that (seed, iteration) fixes.

    Stops early when the policy has moved max_update_kl nats per token away from the sampling one.

    Returns:
        Means over the steps taken, their number, and `policy/first_ratio_mean`: the probability ratio before any of
        them, which is 1 unless sampling and training disagree about a probability.
    """
    loss = value_warmup_loss if iteration < config.value_warmup_iterations else ppo_loss
    rows_per_step = config.mini_batch_size * config.gradient_accumulation_steps
    steps: list[dict[str, float]] = []
    for epoch in range(config.ppo_epochs):
        order = permutation(len(experience.old_logprobs), config.seed, "update", iteration, epoch)
        for start in range(0, len(order), rows_per_step):
            rows = order[start : start + rows_per_step]
            steps.append(_optimiser_step(client, optimizer, guard, experience, rows, loss, config))
            if _moved_too_far(steps[-1], config):
                return _summary(steps, guard)
    return _summary(steps, guard)


def ppo_loss(
    part: Experience, token_count: int, config: PPOConfig, model: nn.Module
) -> tuple[Tensor, dict[str, Tensor]]:
    """Policy loss + value_coef * value loss - entropy_coef * entropy.

    Args:
        token_count: response tokens of the whole optimiser step, so that losses and metrics of micro-batches add up.
    """
    mask = part.sequences.response_mask
    policy = policy_of(model)
    measure = policy.response_outputs if config.entropy_coef else policy.response_outputs_with_detached_entropy
    outputs = measure(part.sequences, config.temperature)
    policy_loss = ppo_policy_loss(
        outputs.logprobs,
        part.old_logprobs,
        part.advantages,
        mask,
        clip_ratio=config.clip_ratio,
        token_count=token_count,
    )
    value_loss = _value_loss(outputs.values, part, token_count, config)
    entropy = masked_mean(outputs.entropy, mask, token_count)
    loss = ppo_total_loss(
        policy_loss, value_loss, entropy, value_coef=config.value_coef, entropy_coef=config.entropy_coef
    )
    with torch.no_grad():
        ratio = probability_ratio(outputs.logprobs, part.old_logprobs, mask)
        drift = k1(part.old_logprobs, outputs.logprobs)
        clipped = clip_fraction(
            outputs.logprobs,
            part.old_logprobs,
            part.advantages,
            mask,
            clip_ratio=config.clip_ratio,
            token_count=token_count,
        )
        metrics = {
            "policy/loss": policy_loss.detach(),
            "value/loss": value_loss.detach(),
            "policy/entropy_mean": entropy.detach(),
            "policy/clip_fraction": clipped,
            "policy/ratio_mean": masked_mean(ratio, mask, token_count),
            "kl/update_token_mean": masked_mean(drift, mask, token_count),
        }
    return loss, metrics


def value_warmup_loss(
    part: Experience, token_count: int, config: PPOConfig, model: nn.Module
) -> tuple[Tensor, dict[str, Tensor]]:
    """The value loss alone, the trunk detached: the critic learns and the policy stays exactly where it is."""
    with torch.no_grad():
        outputs = policy_of(model).response_outputs(part.sequences, config.temperature)
        entropy = masked_mean(outputs.entropy, part.sequences.response_mask, token_count)
    value_loss = _value_loss(policy_of(model).response_values(part.sequences), part, token_count, config)
    metrics = {"policy/loss": torch.zeros(()), "value/loss": value_loss.detach(), "policy/entropy_mean": entropy}
    return config.value_coef * value_loss, metrics


def _value_loss(values: Tensor, part: Experience, token_count: int, config: PPOConfig) -> Tensor:
    return clipped_value_loss(
        values,
        part.old_values,
        part.returns,
        part.sequences.response_mask,
        value_clip=config.value_clip,
        token_count=token_count,
    )


def _optimiser_step(
    client: AsyncTrainingClient,
    optimizer: torch.optim.Optimizer,
    guard: NonFiniteGuard,
    experience: Experience,
    rows: list[int],
    loss: Loss,
    config: PPOConfig,
) -> dict[str, float]:
    whole = experience.select(rows)
    token_count = int(whole.sequences.response_mask.sum())
    parts = [whole]
    if len(rows) > config.mini_batch_size:
        starts = range(0, len(rows), config.mini_batch_size)
        parts = [experience.select(rows[start : start + config.mini_batch_size]) for start in starts]
    passes = [client.backward(partial(loss, part, token_count, config)) for part in parts]
    outcome = client.optim_step(optimizer, max_grad_norm=config.max_grad_norm).result()
    outputs = [output.result() for output in passes]
    guard.accepts(loss=sum(output.loss for output in outputs), grad_norm=outcome.grad_norm)
    metrics = {"optim/grad_norm": outcome.grad_norm}
    for output in outputs:
        for name, value in output.metrics.items():
            if name.startswith(("policy/", "value/", "kl/")):
                metrics[name] = metrics.get(name, 0.0) + value
    return metrics


def _moved_too_far(step: Mapping[str, float], config: PPOConfig) -> bool:
    return config.max_update_kl is not None and step.get("kl/update_token_mean", 0.0) > config.max_update_kl


def _summary(steps: list[dict[str, float]], guard: NonFiniteGuard) -> dict[str, float]:
    summary = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
    summary["optim/step_count"] = float(len(steps))
    summary["optim/non_finite_steps"] = float(guard.skipped)
    if "policy/ratio_mean" in steps[0]:
        summary["policy/first_ratio_mean"] = steps[0]["policy/ratio_mean"]
    return summary
