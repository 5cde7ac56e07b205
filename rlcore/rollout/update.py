"""The optimiser steps of one iteration over its shuffled responses, and what is reported about them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlcore.configs import RolloutConfig
from rlcore.forward_backward import AsyncTrainingClient, LossOfPart, StepOutput
from rlcore.functional.kl import k1, k3
from rlcore.functional.losses import clip_fraction, probability_ratio
from rlcore.functional.masking import masked_mean
from rlcore.health import NonFiniteGuard
from rlcore.streams import permutation

LossesOfStep = Callable[[list[int]], LossOfPart]
"""From the rows of an optimiser step to the losses of its parts.

Their metrics are sums over rows divided by the counts of the step, so those of the parts add up to the step's. Those of
`update_measures` are among them.
"""

UPDATE_KL = "kl/update_k3_token_mean"
"""The metric that `max_update_kl` limits: never below 0, so that noise does not hide a policy that ran away."""


def update_rollout(
    client: AsyncTrainingClient,
    optimizer: torch.optim.Optimizer,
    guard: NonFiniteGuard,
    row_count: int,
    losses_of: LossesOfStep,
    *,
    config: RolloutConfig,
    epochs: int,
    iteration: int,
) -> dict[str, float]:
    """All optimiser steps of one iteration, in an order that (config.seed, iteration) fixes.

    A step is over gradient_accumulation_steps mini-batches; the last one of a pass may have fewer. The step that finds
    UPDATE_KL above max_update_kl is the last.

    Args:
        client: of the policy.
        optimizer: of its trained weights.
        guard: counts steps that were skipped because a number was not finite.
        row_count: responses of the iteration.
        losses_of: the losses.
        config: sizes, limits and seed.
        epochs: passes over the responses.
        iteration: counted from 0.

    Returns:
        means over the steps that were made, the number of steps, and `policy/first_ratio_mean`: the probability ratio
        before any of them, which is 1 unless sampling and training disagree about a probability.

    Raises:
        TrainingDiverged: too many steps in a row were skipped.
    """
    steps: list[StepOutput] = []
    rows_per_step = config.mini_batch_size * config.gradient_accumulation_steps
    limit = math.inf if config.max_update_kl is None else config.max_update_kl
    for epoch in range(epochs):
        order = permutation(row_count, config.seed, "update", iteration, epoch)
        for start in range(0, row_count, rows_per_step):
            rows = order[start : start + rows_per_step]
            step = client.train_step(
                rows,
                losses_of(rows),
                optimizer,
                micro_batch_size=config.mini_batch_size,
                max_grad_norm=config.max_grad_norm,
            )
            guard.accepts(loss=step.loss, grad_norm=step.grad_norm)
            steps.append(step)
            if step.metrics[UPDATE_KL] > limit:
                return _summary(steps, guard)
    return _summary(steps, guard)


def update_measures(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float,
    token_count: int,
) -> dict[str, Tensor]:
    """How far the policy is from the one that sampled: ratio, clip fraction and KL, means over token_count tokens.

    Args:
        logprobs, old_logprobs, advantages: [B, T]; see ppo_policy_loss.
        response_mask: bool [B, T].
        clip_ratio: half-width of the trust region.
        token_count: tokens of the whole optimiser step, so that the measures of its parts add up.
    """
    logprobs = logprobs.detach()
    ratio = probability_ratio(logprobs, old_logprobs, response_mask)
    return {
        "policy/clip_fraction": clip_fraction(
            logprobs, old_logprobs, advantages, response_mask, clip_ratio=clip_ratio, token_count=token_count
        ),
        "policy/ratio_mean": masked_mean(ratio, response_mask, token_count),
        "kl/update_token_mean": masked_mean(k1(old_logprobs, logprobs), response_mask, token_count),
        UPDATE_KL: masked_mean(k3(old_logprobs, logprobs), response_mask, token_count),
    }


def _summary(steps: Sequence[StepOutput], guard: NonFiniteGuard) -> dict[str, float]:
    """Means over the steps made; over the skipped ones, which shows what was wrong, where none was made."""
    counted = [step for step in steps if not step.skipped] or steps
    summary = {name: sum(step.metrics[name] for step in counted) / len(counted) for name in counted[0].metrics}
    summary["optim/grad_norm"] = sum(step.grad_norm for step in counted) / len(counted)
    summary["optim/learning_rate"] = steps[-1].learning_rate
    summary["optim/step_count"] = float(len(steps))
    summary["optim/non_finite_steps"] = float(guard.skipped)
    summary["policy/first_ratio_mean"] = steps[0].metrics["policy/ratio_mean"]
    return summary
