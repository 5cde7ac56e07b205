"""The learning half of a PPO iteration: advantages once, then the losses of the optimiser steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from rlcore.batches import Sequences
from rlcore.configs import PPOConfig
from rlcore.forward_backward import LossOfPart
from rlcore.functional.advantages import gae, token_rewards
from rlcore.functional.losses import clipped_value_loss, ppo_policy_loss, ppo_total_loss
from rlcore.functional.masking import masked_mean, whiten
from rlcore.models import PPOModel, ResponseOutputs
from rlcore.rollout import LossesOfStep, Rollout, update_measures

LossTerms = tuple[Tensor, dict[str, Tensor]]
Loss = Callable[["Experience", int, PPOConfig, nn.Module], LossTerms]


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
        index = torch.tensor(rows, dtype=torch.int64, device=self.old_logprobs.device)
        return Experience(
            self.sequences.select(index),
            self.old_logprobs[index],
            self.old_values[index],
            self.advantages[index],
            self.returns[index],
        )

    def token_count(self, rows: list[int]) -> int:
        """Response tokens of the given rows."""
        return int(self.sequences.response_mask[rows].sum())


def experience_of(rollout: Rollout, config: PPOConfig, kl_coef: float) -> Experience:
    """Token rewards (KL penalty, score on the last real token), GAE and whitened advantages of a rollout."""
    mask, old_values = rollout.response_mask, cast(Tensor, rollout.old_values)
    rewards = token_rewards(rollout.kl, rollout.scores, mask, kl_coef=kl_coef)
    advantages, returns = gae(rewards, old_values, mask, rollout.bootstrap_values, gamma=config.gamma, lam=config.lam)
    return Experience(rollout.sequences, rollout.old_logprobs, old_values, whiten(advantages, mask), returns)


def losses_of(experience: Experience, config: PPOConfig, loss: Loss) -> LossesOfStep:
    """From the rows of an optimiser step, the losses of its parts, divided by the tokens of the whole step."""

    def of_step(rows: list[int]) -> LossOfPart:
        token_count = experience.token_count(rows)
        return lambda part: partial(loss, experience.select(part), token_count, config)

    return of_step


def ppo_loss(part: Experience, token_count: int, config: PPOConfig, model: nn.Module) -> LossTerms:
    """Policy loss + value_coef * value loss - entropy_coef * entropy.

    Args:
        part: some responses of an optimiser step.
        token_count: response tokens of the whole optimiser step, so that losses and metrics of its parts add up.
        config: settings.
        model: a PPOModel.
    """
    policy = cast(PPOModel, model)
    measure = policy.response_outputs if config.entropy_coef else policy.response_outputs_with_detached_entropy
    outputs = measure(part.sequences, config.temperature)
    policy_loss = ppo_policy_loss(
        outputs.logprobs,
        part.old_logprobs,
        part.advantages,
        part.sequences.response_mask,
        clip_ratio=config.clip_ratio,
        token_count=token_count,
    )
    value_loss = _value_loss(outputs.values, part, token_count, config)
    entropy = masked_mean(outputs.entropy, part.sequences.response_mask, token_count)
    loss = ppo_total_loss(
        policy_loss, value_loss, entropy, value_coef=config.value_coef, entropy_coef=config.entropy_coef
    )
    return loss, _metrics(policy_loss, value_loss, entropy, outputs, part, token_count, config)


def value_warmup_loss(part: Experience, token_count: int, config: PPOConfig, model: nn.Module) -> LossTerms:
    """The value loss alone, the trunk detached: the critic learns and the policy stays exactly where it is."""
    outputs = cast(PPOModel, model).response_outputs_with_detached_trunk(part.sequences, config.temperature)
    value_loss = _value_loss(outputs.values, part, token_count, config)
    entropy = masked_mean(outputs.entropy, part.sequences.response_mask, token_count)
    metrics = _metrics(torch.zeros(()), value_loss, entropy, outputs, part, token_count, config)
    return config.value_coef * value_loss, metrics


def _metrics(
    policy_loss: Tensor,
    value_loss: Tensor,
    entropy: Tensor,
    outputs: ResponseOutputs,
    part: Experience,
    token_count: int,
    config: PPOConfig,
) -> dict[str, Tensor]:
    return {
        "policy/loss": policy_loss.detach(),
        "value/loss": value_loss.detach(),
        "policy/entropy_mean": entropy.detach(),
        **update_measures(
            outputs.logprobs,
            part.old_logprobs,
            part.advantages,
            part.sequences.response_mask,
            clip_ratio=config.clip_ratio,
            token_count=token_count,
        ),
    }


def _value_loss(values: Tensor, part: Experience, token_count: int, config: PPOConfig) -> Tensor:
    return clipped_value_loss(
        values,
        part.old_values,
        part.returns,
        part.sequences.response_mask,
        value_clip=config.value_clip,
        token_count=token_count,
    )
