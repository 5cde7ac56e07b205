"""The learning half of an iteration without a critic: what a response is worth against its group, and the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.batches import Sequences
from rlcore.configs import GRPOConfig
from rlcore.forward_backward import LossOfPart
from rlcore.functional.advantages import group_relative_advantages, leave_one_out_advantages
from rlcore.functional.kl import k3, sequence_kl
from rlcore.functional.losses import constant_length_mean, ppo_token_losses, sequence_mean, token_mean
from rlcore.functional.masking import masked_mean
from rlcore.models import language_model_of, sampled_logprobs_and_detached_entropy
from rlcore.rollout import LossesOfStep, Rollout, update_measures


class Estimator(NamedTuple):
    """How advantages [B] come from a rollout, and the weight of the KL to the reference in the loss."""

    advantages: Callable[[Rollout, GRPOConfig], Tensor]
    loss_kl_coef: Callable[[GRPOConfig], float]


class StepCounts(NamedTuple):
    """What the losses and metrics of one optimiser step are divided by."""

    sampled_tokens: int
    learned_tokens: int
    learned_sequences: int


@dataclass(frozen=True, eq=False)
class Experience:
    """What the loss needs of some responses."""

    sequences: Sequences
    old_logprobs: Tensor
    """[B, T], nats; 0 on tokens that were not sampled."""
    ref_logprobs: Tensor
    """[B, T], nats; 0 on tokens that were not sampled."""
    advantages: Tensor
    """[B], 0 where nothing is learned."""
    learned_mask: Tensor
    """bool [B, T], True on the sampled tokens of responses that are learned from."""

    def select(self, rows: list[int]) -> "Experience":
        """The given rows."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.old_logprobs.device)
        return Experience(
            self.sequences.select(index),
            self.old_logprobs[index],
            self.ref_logprobs[index],
            self.advantages[index],
            self.learned_mask[index],
        )

    def counts(self, rows: list[int]) -> StepCounts:
        """What an optimiser step over the given rows divides by."""
        learned = self.learned_mask[rows]
        return StepCounts(
            sampled_tokens=int(self.sequences.response_mask[rows].sum()),
            learned_tokens=int(learned.sum()),
            learned_sequences=int(learned.any(dim=1).sum()),
        )


def experience_of(rollout: Rollout, config: GRPOConfig) -> Experience:
    """Advantages of a rollout, and which of its tokens are learned from.

    Left out, in numerator and denominator of every loss, are responses without a score and, with mask_truncated, those
    that were cut. Groups of equal scores have advantage 0 and stay in the denominator; their KL still counts.
    """
    learned = ~rollout.scores.isnan()
    if config.mask_truncated:
        learned = learned & ~rollout.truncated
    advantages = ESTIMATORS[config.advantage_estimator].advantages(rollout, config)
    return Experience(
        sequences=rollout.sequences,
        old_logprobs=rollout.old_logprobs,
        ref_logprobs=rollout.ref_logprobs,
        advantages=advantages.where(learned, 0.0),
        learned_mask=rollout.response_mask & learned[:, None],
    )


def group_metrics(rollout: Rollout, experience: Experience) -> dict[str, float]:
    """How much there is to learn from: spread of the groups, missing scores, responses that are left out, turns."""
    scores, groups = rollout.scores, rollout.group_ids
    count = groups.unique().numel()
    # Equal scores give deviations of exactly 0, so any other one marks a group with a spread.
    deviations = group_relative_advantages(scores, groups, scaling="none")
    learned = experience.learned_mask.any(dim=1)
    mask = rollout.response_mask
    turns = mask[:, 0].long() + (mask[:, 1:] & ~mask[:, :-1]).sum(dim=1)
    return {
        "reward/zero_spread_fraction": 1 - groups[deviations != 0].unique().numel() / count,
        "reward/missing_fraction": scores.isnan().float().mean().item(),
        "reward/unscored_group_count": float(count - groups[~scores.isnan()].unique().numel()),
        "policy/learned_fraction": learned.float().mean().item(),
        "response/turns_mean": turns.float().mean().item(),
    }


def group_relative(rollout: Rollout, config: GRPOConfig) -> Tensor:
    """Score less the mean of its group, over the spread that advantage_scaling names (GRPO)."""
    return group_relative_advantages(rollout.scores, rollout.group_ids, scaling=config.advantage_scaling)


def leave_one_out(rollout: Rollout, config: GRPOConfig) -> Tensor:
    """Score less kl_penalty_coef * KL of the response, less the mean of the others in the group (RLOO)."""
    kl = sequence_kl(rollout.kl, rollout.response_mask)
    return leave_one_out_advantages(rollout.scores - config.kl_penalty_coef * kl, rollout.group_ids)


ESTIMATORS: dict[str, Estimator] = {
    "group_relative": Estimator(group_relative, lambda config: config.kl_penalty_coef),
    "leave_one_out": Estimator(leave_one_out, lambda config: 0.0),
}


def token_reduction(token_losses: Tensor, learned_mask: Tensor, counts: StepCounts, config: GRPOConfig) -> Tensor:
    """Each token weighs the same."""
    return token_mean(token_losses, learned_mask, counts.learned_tokens)


def sequence_reduction(token_losses: Tensor, learned_mask: Tensor, counts: StepCounts, config: GRPOConfig) -> Tensor:
    """Each response weighs the same."""
    return sequence_mean(token_losses, learned_mask, counts.learned_sequences)


def constant_reduction(token_losses: Tensor, learned_mask: Tensor, counts: StepCounts, config: GRPOConfig) -> Tensor:
    """Each token weighs the same, as if every response had max_new_tokens."""
    return constant_length_mean(
        token_losses, learned_mask, max_length=config.max_new_tokens, sequence_count=counts.learned_sequences
    )


REDUCTIONS: dict[str, Callable[[Tensor, Tensor, StepCounts, GRPOConfig], Tensor]] = {
    "token": token_reduction,
    "sequence": sequence_reduction,
    "constant": constant_reduction,
}


def policy_losses(logprobs: Tensor, part: Experience, counts: StepCounts, config: GRPOConfig) -> tuple[Tensor, Tensor]:
    """The clipped surrogate (Schulman et al. 2017, eq. 7) and the KL penalty (k3, Schulman 2020), both to be minimised.

    Args:
        logprobs: float [B, T], nats at the sampling temperature, with gradient.
        part: a micro-batch.
        counts: of the whole optimiser step, so that micro-batches add up.
        config: names reduction and estimator.

    Returns:
        Two scalars in reward units; 0 with gradient 0 where nothing is learned.
    """
    mask = part.learned_mask
    reduced = REDUCTIONS[config.loss_normalization]
    advantages = part.advantages[:, None].expand_as(logprobs)
    surrogate = ppo_token_losses(logprobs, part.old_logprobs, advantages, mask, clip_ratio=config.clip_ratio)
    kl = k3(logprobs.where(mask, 0.0), part.ref_logprobs.where(mask, 0.0))
    kl_coef = ESTIMATORS[config.advantage_estimator].loss_kl_coef(config)
    return reduced(surrogate, mask, counts, config), kl_coef * reduced(kl, mask, counts, config)


def losses_of(experience: Experience, config: GRPOConfig) -> LossesOfStep:
    """From the rows of an optimiser step, the losses of its parts, divided by the counts of the whole step."""

    def of_step(rows: list[int]) -> LossOfPart:
        counts = experience.counts(rows)
        return lambda part: partial(grpo_loss, experience.select(part), counts, config)

    return of_step


def grpo_loss(
    part: Experience, counts: StepCounts, config: GRPOConfig, model: nn.Module
) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of policy_losses, and metrics. Their token means count all sampled tokens, learned from or not."""
    logprobs, entropy = sampled_logprobs_and_detached_entropy(
        language_model_of(model), part.sequences, config.temperature
    )
    policy_loss, kl_loss = policy_losses(logprobs, part, counts, config)
    mask = part.sequences.response_mask
    measures = update_measures(
        logprobs,
        part.old_logprobs,
        part.advantages[:, None].expand_as(logprobs),
        mask,
        clip_ratio=config.clip_ratio,
        token_count=counts.sampled_tokens,
    )
    metrics = {
        **measures,
        "policy/loss": policy_loss.detach(),
        "policy/kl_loss": kl_loss.detach(),
        "policy/entropy_mean": masked_mean(entropy, mask, counts.sampled_tokens),
    }
    return policy_loss + kl_loss, metrics
