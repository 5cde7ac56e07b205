"""The optimiser steps of one iteration over its shuffled responses, and what is reported about them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlcore.forward_backward import AsyncTrainingClient
from rlcore.forward_backward.future import StepOutput
from rlcore.forward_backward.lane import LossFunction
from rlcore.functional.kl import k1, k3
from rlcore.functional.losses import clip_fraction, probability_ratio
from rlcore.functional.masking import masked_mean
from rlcore.health import NonFiniteGuard
from rlcore.streams import permutation

LossOfPart = Callable[[list[int]], LossFunction]
"""The loss of some rows of an optimiser step, divided by the counts of the whole step."""

UPDATE_KL = "kl/update_k3_token_mean"
"""The metric that `max_update_kl` limits: never below 0, so that noise does not hide a policy that ran away."""


def update_rollout(
    client: AsyncTrainingClient,
    optimizer: torch.optim.Optimizer,
    guard: NonFiniteGuard,
    row_count: int,
    loss_of_rows: Callable[[list[int]], LossOfPart],
    *,
    epochs: int,
    rows_per_step: int,
    micro_batch_size: int,
    max_grad_norm: float,
    max_update_kl: float | None,
    seed: int,
    iteration: int,
) -> dict[str, float]:
    """All optimiser steps of one iteration, in an order that (seed, iteration) fixes.

    Args:
        client: of the policy.
        optimizer: of its trained weights.
        guard: counts steps that were skipped because a number was not finite.
        row_count: responses of the iteration.
        loss_of_rows: from the rows of an optimiser step, the losses of its parts. Their metrics are sums over rows
            divided by the counts of the step, so those of the parts add up.
        epochs: passes over the responses.
        rows_per_step: responses of one optimiser step; the last one of a pass may have fewer.
        micro_batch_size: responses of one backward pass.
        max_grad_norm: gradients are scaled down to this L2 norm.
        max_update_kl: the step that finds UPDATE_KL above it is the last, nats per token; None: never.
        seed, iteration: key of the order.

    Returns:
        means over the steps that were made, the number of steps, and `policy/first_ratio_mean`: the probability ratio
        before any of them, which is 1 unless sampling and training disagree about a probability.

    Raises:
        TrainingDiverged: too many steps in a row were skipped.
    """
    steps: list[StepOutput] = []
    for epoch in range(epochs):
        order = permutation(row_count, seed, "update", iteration, epoch)
        for start in range(0, row_count, rows_per_step):
            rows = order[start : start + rows_per_step]
            step = client.train_step(
                rows,
                loss_of_rows(rows),
                optimizer,
                micro_batch_size=micro_batch_size,
                max_grad_norm=max_grad_norm,
            )
            guard.accepts(loss=step.loss, grad_norm=step.grad_norm)
            steps.append(step)
            if max_update_kl is not None and step.metrics.get(UPDATE_KL, 0.0) > max_update_kl:
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
    if "policy/ratio_mean" in steps[0].metrics:
        summary["policy/first_ratio_mean"] = steps[0].metrics["policy/ratio_mean"]
    return summary
