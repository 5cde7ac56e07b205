"""From scores to token rewards, and from rewards to advantages. Nothing here carries gradient or whitens."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlcore.errors import ConfigError, DataError
from rlcore.functional.masking import last_index, require_same_shape
from rlcore.functional.precision import at_least_float32


def token_rewards(kl: Tensor, scores: Tensor, response_mask: Tensor, *, kl_coef: float) -> Tensor:
    """-kl_coef * kl on each response token, plus the score on the last one (Ziegler et al. 2019, eq. 2).

    Args:
        kl: float [B, T], k1 = old_logprobs - ref_logprobs, nats per token.
        scores: float [B], reward units, once per response.
        response_mask: bool [B, T].
        kl_coef: reward units per nat, at least 0.

    Returns:
        rewards [B, T], reward units; 0 on padding.

    Raises:
        DataError: the shapes differ, or a response has no token.
    """
    require_same_shape(kl=kl, response_mask=response_mask)
    require_same_shape(scores=scores, responses=response_mask.any(dim=-1))
    rewards = (-kl_coef * at_least_float32(kl)).where(response_mask, 0.0)
    last = last_index(response_mask).unsqueeze(1)
    return rewards.scatter_add(1, last, scores.to(rewards.dtype).unsqueeze(1))


def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, bootstrap_values: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over response tokens (Schulman et al. 2016, eq. 16).

        delta_t = r_t + gamma * V_{t+1} - V_t
        A_t     = delta_t + gamma * lam * A_{t+1}

    V after the last real token is bootstrap_values: 0 where the response terminated, V(next state) where it was
    truncated. Padding gets 0 and leaks into no other token.

    Args:
        rewards, values: float [B, T], reward units.
        response_mask: bool [B, T].
        bootstrap_values: float [B], reward units.
        gamma, lam: discount per token and GAE lambda, both 0 to 1.

    Returns:
        advantages (not whitened) and returns, both [B, T]; 0 on padding.

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(rewards=rewards, values=values, response_mask=response_mask)
    require_same_shape(bootstrap_values=bootstrap_values, responses=response_mask.any(dim=-1))
    rewards, values = at_least_float32(rewards), at_least_float32(values)
    next_value = bootstrap_values.to(values.dtype)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        real = response_mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(real, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(real, values[:, t], next_value)
        advantages[:, t] = next_advantage.where(real, 0.0)
    return advantages, (advantages + values).where(response_mask, 0.0)


def gae_flat(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over steps of one environment, whose episodes follow each other in one row.

        delta_t = r_t + gamma * V(next state) * (1 - terminated_t) - V_t
        A_t     = delta_t + gamma * lam * (1 - terminated_t or truncated_t) * A_{t+1}

    Args:
        rewards, values, next_values: float [T], reward units; next_values[t] is V of the state that step t led to.
        terminated, truncated: bool [T]; the episode ended by itself, or was cut by a limit, at step t.
        gamma, lam: discount per step and GAE lambda, both 0 to 1.

    Returns:
        advantages and returns, both [T].

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(
        rewards=rewards, values=values, next_values=next_values, terminated=terminated, truncated=truncated
    )
    rewards, values, next_values = (at_least_float32(x) for x in (rewards, values, next_values))
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    ended = terminated | truncated
    advantages = torch.zeros_like(values)
    next_advantage = values.new_zeros(())
    for t in reversed(range(len(values))):
        next_advantage = deltas[t] + gamma * lam * next_advantage.masked_fill(ended[t], 0.0)
        advantages[t] = next_advantage
    return advantages, advantages + values


def group_relative_advantages(
    scores: Tensor, group_ids: Tensor, *, scaling: str = "group", correction: int = 1, epsilon: float = 1e-4
) -> Tensor:
    """(score - mean) / (std + epsilon) among the responses to the same prompt (GRPO, Shao et al. 2024).

    A group of equal scores gets exactly 0. A missing score (NaN) counts in no mean or deviation and gets 0.

    Args:
        scores: float [B], reward units; NaN where the reward source gave none.
        group_ids: int64 [B]: which prompt a response belongs to; in any order.
        scaling: a key of SCALINGS: the deviation of the "group" or of all scores of the "batch"; "none" divides by 1.
        correction: subtracted from n in the variance: 1 for the sample variance, 0 for the population's.
        epsilon: added to the deviation, reward units.

    Returns:
        advantages [B].

    Raises:
        ConfigError: unknown scaling.
        DataError: the shapes differ, or a score is infinite.
    """
    if scaling not in SCALINGS:
        raise ConfigError(f"Unknown scaling {scaling!r}. Use one of {', '.join(SCALINGS)}.")
    scores = _checked_scores(scores, group_ids)
    deviations, _ = _group_deviations(scores, group_ids)
    return deviations / SCALINGS[scaling](scores, group_ids, correction, epsilon)


def leave_one_out_advantages(scores: Tensor, group_ids: Tensor) -> Tensor:
    """Each score less the mean of the other scores of its group (Kool et al. 2019; Ahmadian et al. 2024, RLOO).

    A KL penalty belongs into the scores, before the baseline is taken. A missing score (NaN), and the only score of a
    group, get 0.

    Args:
        scores: float [B], reward units.
        group_ids: int64 [B]: which prompt a response belongs to; in any order.

    Returns:
        advantages [B], reward units.

    Raises:
        DataError: the shapes differ, or a score is infinite.
    """
    scores = _checked_scores(scores, group_ids)
    deviations, counts = _group_deviations(scores, group_ids)
    return deviations * counts / (counts - 1).clamp(min=1)


def group_spread(scores: Tensor, group_ids: Tensor, correction: int, epsilon: float) -> Tensor:
    """Standard deviation of each score's group, plus epsilon, [B]."""
    deviations, counts = _group_deviations(scores, group_ids)
    variances = _group_sums(deviations.square(), group_ids) / (counts - correction).clamp(min=1)
    return variances.sqrt() + epsilon


def batch_spread(scores: Tensor, group_ids: Tensor, correction: int, epsilon: float) -> Tensor:
    """Standard deviation of all scores, plus epsilon, [B]."""
    return group_spread(scores, torch.zeros_like(group_ids), correction, epsilon)


def unit_spread(scores: Tensor, group_ids: Tensor, correction: int, epsilon: float) -> Tensor:
    """One for each score, [B]: advantages stay in reward units."""
    return torch.ones_like(scores)


Spread = Callable[[Tensor, Tensor, int, float], Tensor]
SCALINGS: dict[str, Spread] = {"group": group_spread, "batch": batch_spread, "none": unit_spread}


def _checked_scores(scores: Tensor, group_ids: Tensor) -> Tensor:
    require_same_shape(scores=scores, group_ids=group_ids)
    infinite = scores.isinf().nonzero().flatten().tolist()
    if infinite:
        raise DataError(
            f"The scores of responses {infinite} are infinite; expected finite numbers, or NaN where there is none. "
            "Correct the reward source."
        )
    return at_least_float32(scores)


def _group_deviations(scores: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Scores less the mean of their group, and how many scores the group has; 0 for a missing score. Both [B]."""
    present = ~scores.isnan()
    counts = _group_sums(present.to(scores.dtype), group_ids)
    deviations = scores.where(present, 0.0)
    # The second pass removes what rounding left in the first mean, so that equal scores give exactly 0.
    for _ in range(2):
        means = _group_sums(deviations, group_ids) / counts.clamp(min=1)
        deviations = (deviations - means).where(present, 0.0)
    return deviations, counts


def _group_sums(x: Tensor, group_ids: Tensor) -> Tensor:
    """The sum over the group of each entry, [B]."""
    _, group = torch.unique(group_ids, return_inverse=True)
    return torch.zeros_like(x).index_add(0, group, x)[group]
