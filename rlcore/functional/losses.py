"""Losses, scalars to be minimised, and the measures that are reported beside them.

Token losses divide by token_count and pair losses by pair_count, the numbers of the whole optimiser step: k
micro-batches then add up to one batch. None counts what is passed. The tensors of one call have equal shapes, [B, T]
or [N], or DataError is raised. Only the log-probabilities of the current policy, the values and the rewards of a model
under training are meant to carry gradient.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import ConfigError
from rlcore.functional.masking import masked_mean, masked_var, require_same_shape
from rlcore.functional.precision import at_least_float32, bounded_exp

Count = Tensor | float | None

# Reductions of token losses [B, T].


def token_mean(token_losses: Tensor, response_mask: Tensor, token_count: Count = None) -> Tensor:
    """Sum over response tokens / token_count: each token weighs the same, long responses more than short ones."""
    return masked_mean(token_losses, response_mask, token_count)


def sequence_mean(token_losses: Tensor, response_mask: Tensor, sequence_count: Count = None) -> Tensor:
    """Sum over responses of the mean over their tokens / sequence_count: each response weighs the same.

    A response without tokens adds 0 and counts. sequence_count None: the B responses passed.
    """
    require_same_shape(token_losses=token_losses, response_mask=response_mask)
    lengths = response_mask.sum(dim=-1).clamp(min=1)
    means = at_least_float32(token_losses).where(response_mask, 0.0).sum(dim=-1) / lengths
    return _row_mean(means, sequence_count)


def constant_length_mean(
    token_losses: Tensor, response_mask: Tensor, *, max_length: int, sequence_count: Count = None
) -> Tensor:
    """Sum over response tokens / (sequence_count * max_length): length changes no token's weight (Liu et al. 2025).

    sequence_count None: the B responses passed.
    """
    sequences = token_losses.shape[0] if sequence_count is None else sequence_count
    return masked_mean(token_losses, response_mask, sequences * max_length)


# Policy, value and entropy.


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor, response_mask: Tensor) -> Tensor:
    """exp(logprobs - old_logprobs), [B, T], 1 on padding. Above exp(40) it goes on as its tangent and stays finite."""
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, response_mask=response_mask)
    difference = at_least_float32(logprobs) - at_least_float32(old_logprobs)
    return bounded_exp(difference.where(response_mask, 0.0))


def ppo_token_losses(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor, *, clip_ratio: float
) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * A), [B, T], 0 on padding.

    Schulman et al. 2017, eq. 7.
    """
    free, clipped = _surrogates(logprobs, old_logprobs, advantages, response_mask, clip_ratio)
    return -torch.minimum(free, clipped)


def ppo_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float,
    token_count: Count = None,
) -> Tensor:
    """Token mean of ppo_token_losses, in reward units. Inputs [B, T]; logprobs carries the gradient."""
    losses = ppo_token_losses(logprobs, old_logprobs, advantages, response_mask, clip_ratio=clip_ratio)
    return token_mean(losses, response_mask, token_count)


def clip_fraction(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float,
    token_count: Count = None,
) -> Tensor:
    """Share of the response tokens whose clipped surrogate is the smaller one, so that they give no gradient."""
    free, clipped = _surrogates(logprobs, old_logprobs, advantages, response_mask, clip_ratio)
    return token_mean((clipped < free).to(free.dtype), response_mask, token_count)


def importance_sampling_token_losses(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor
) -> Tensor:
    """-ratio * A, [B, T], 0 on padding. Its gradient at ratio 1 is that of the policy gradient theorem."""
    require_same_shape(logprobs=logprobs, advantages=advantages)
    ratio = probability_ratio(logprobs, old_logprobs, response_mask)
    return -ratio * at_least_float32(advantages).where(response_mask, 0.0)


def importance_sampling_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor, *, token_count: Count = None
) -> Tensor:
    """Token mean of importance_sampling_token_losses, in reward units. Inputs [B, T]; logprobs carries the gradient."""
    losses = importance_sampling_token_losses(logprobs, old_logprobs, advantages, response_mask)
    return token_mean(losses, response_mask, token_count)


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    *,
    value_clip: float | None,
    token_count: Count = None,
) -> Tensor:
    """Token mean of 0.5 * max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2). The 0.5 is inside.

    Args:
        values, old_values, returns: float [B, T], reward units; old_values are those stored at sampling time.
        response_mask: bool [B, T].
        value_clip: reward units; None does not clip.
        token_count: see the module.
    """
    free, clipped = _squared_errors(values, old_values, returns, response_mask, value_clip)
    return 0.5 * token_mean(torch.maximum(free, clipped), response_mask, token_count)


def value_clip_fraction(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    *,
    value_clip: float | None,
    token_count: Count = None,
) -> Tensor:
    """Share of the response tokens whose clipped error is the larger one, so that they give no gradient."""
    free, clipped = _squared_errors(values, old_values, returns, response_mask, value_clip)
    return token_mean((clipped > free).to(free.dtype), response_mask, token_count)


def explained_variance(values: Tensor, returns: Tensor, response_mask: Tensor) -> Tensor:
    """1 - var(R - V) / var(R) over response tokens: 1 is a perfect critic, 0 one that knows the mean only.

    Returns without spread leave nothing to explain and give 0.
    """
    require_same_shape(values=values, returns=returns)
    spread = masked_var(returns, response_mask)
    unexplained = masked_var(at_least_float32(returns) - at_least_float32(values), response_mask)
    return torch.where(spread > 0, 1 - unexplained / spread.where(spread > 0, 1.0), 0.0)


def ppo_total_loss(
    policy_loss: Tensor, value_loss: Tensor, entropy_mean: Tensor, *, value_coef: float, entropy_coef: float
) -> Tensor:
    """policy_loss + value_coef * value_loss - entropy_coef * entropy_mean, scalars.

    The value loss has its 0.5 already. entropy_mean is the token mean of the entropy of the unfiltered distribution, in
    nats: the bonus lowers the loss.
    """
    return policy_loss + value_coef * value_loss - entropy_coef * entropy_mean


# Preference pairs.


def implicit_rewards(sequence_logprobs: Tensor, ref_sequence_logprobs: Tensor, *, beta: float) -> Tensor:
    """beta * (sequence_logprobs - ref_sequence_logprobs), [N]: the reward that DPO ascribes to a response."""
    require_same_shape(sequence_logprobs=sequence_logprobs, ref_sequence_logprobs=ref_sequence_logprobs)
    return beta * (at_least_float32(sequence_logprobs) - at_least_float32(ref_sequence_logprobs))


def dpo_pair_losses(chosen_rewards: Tensor, rejected_rewards: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - s) * log sigmoid(h) - s * log sigmoid(-h), h = chosen_rewards - rejected_rewards, all [N].

    Args:
        chosen_rewards, rejected_rewards: implicit_rewards of the two responses.
        label_smoothing: s, the share of pairs believed to be labelled the wrong way round (Mitchell 2023), 0 to 0.5.

    Raises:
        ConfigError: label_smoothing is outside 0 to 0.5.
        DataError: the shapes differ.
    """
    if not 0 <= label_smoothing <= 0.5:
        raise ConfigError(
            f"label_smoothing={label_smoothing}: expected 0 to 0.5. "
            "More would turn the preference round: swap chosen and rejected instead."
        )
    require_same_shape(chosen_rewards=chosen_rewards, rejected_rewards=rejected_rewards)
    margins = at_least_float32(chosen_rewards) - at_least_float32(rejected_rewards)
    return -(1 - label_smoothing) * F.logsigmoid(margins) - label_smoothing * F.logsigmoid(-margins)


def dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    pair_count: Count = None,
) -> Tensor:
    """Pair mean of dpo_pair_losses (Rafailov et al. 2023, eq. 7): ln 2 where policy and reference are equal.

    Args:
        chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs: float [N], sums over a response.
        beta: strength of the pull to the reference, above 0.
        label_smoothing, pair_count: see dpo_pair_losses and the module.
    """
    chosen_rewards = implicit_rewards(chosen_logprobs, ref_chosen_logprobs, beta=beta)
    rejected_rewards = implicit_rewards(rejected_logprobs, ref_rejected_logprobs, beta=beta)
    return _row_mean(dpo_pair_losses(chosen_rewards, rejected_rewards, label_smoothing=label_smoothing), pair_count)


def reference_free_dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    pair_count: Count = None,
) -> Tensor:
    """dpo_loss against a reference that likes all responses alike. Its implicit rewards are beta * logprobs."""
    chosen_rewards, rejected_rewards = beta * chosen_logprobs, beta * rejected_logprobs
    return _row_mean(dpo_pair_losses(chosen_rewards, rejected_rewards, label_smoothing=label_smoothing), pair_count)


def log_odds_ratio(chosen_mean_logprobs: Tensor, rejected_mean_logprobs: Tensor) -> Tensor:
    """ln(odds(chosen) / odds(rejected)), [N], with odds(p) = p / (1 - p) (Hong et al. 2024, ORPO, eq. 4).

    Args:
        chosen_mean_logprobs, rejected_mean_logprobs: float [N], means over the response tokens, at most 0.
    """
    require_same_shape(chosen_mean_logprobs=chosen_mean_logprobs, rejected_mean_logprobs=rejected_mean_logprobs)
    return _log_odds(chosen_mean_logprobs) - _log_odds(rejected_mean_logprobs)


def orpo_pair_losses(
    chosen_mean_logprobs: Tensor, rejected_mean_logprobs: Tensor, chosen_nll: Tensor, *, odds_coef: float
) -> Tensor:
    """chosen_nll - odds_coef * log sigmoid(log_odds_ratio), [N] (Hong et al. 2024, ORPO, eq. 6).

    Args:
        chosen_mean_logprobs, rejected_mean_logprobs: see log_odds_ratio.
        chosen_nll: float [N], the supervised loss of the chosen response, in nats per token.
        odds_coef: weight of the odds ratio, at least 0.
    """
    odds_losses = -F.logsigmoid(log_odds_ratio(chosen_mean_logprobs, rejected_mean_logprobs))
    require_same_shape(chosen_nll=chosen_nll, odds_losses=odds_losses)
    return at_least_float32(chosen_nll) + odds_coef * odds_losses


def orpo_loss(
    chosen_mean_logprobs: Tensor,
    rejected_mean_logprobs: Tensor,
    chosen_nll: Tensor,
    *,
    odds_coef: float,
    pair_count: Count = None,
) -> Tensor:
    """Pair mean of orpo_pair_losses."""
    losses = orpo_pair_losses(chosen_mean_logprobs, rejected_mean_logprobs, chosen_nll, odds_coef=odds_coef)
    return _row_mean(losses, pair_count)


def bradley_terry_pair_losses(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(chosen - rejected - margin), [N] (Bradley & Terry 1952; margin: Touvron et al. 2023, eq. 2).

    Args:
        chosen, rejected: float [N], rewards of the two responses of each pair.
        margin: float or [N], reward units: how far apart they ought to be.
    """
    require_same_shape(chosen=chosen, rejected=rejected)
    if isinstance(margin, Tensor):
        require_same_shape(chosen=chosen, margin=margin)
    return -F.logsigmoid(at_least_float32(chosen) - at_least_float32(rejected) - margin)


def bradley_terry_loss(
    chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, pair_count: Count = None
) -> Tensor:
    """Pair mean of bradley_terry_pair_losses."""
    return _row_mean(bradley_terry_pair_losses(chosen, rejected, margin), pair_count)


def preference_label_losses(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """-labels * log sigmoid(first - second) - (1 - labels) * log sigmoid(second - first), [N].

    Bradley-Terry where either response may be the preferred one.

    Args:
        first, second: float [N], rewards of the two responses of each pair.
        labels: float [N]: 1 where the first is preferred, 0 where the second is; between them, the share of the judges
            who prefer the first.
    """
    require_same_shape(first=first, second=second, labels=labels)
    margins = at_least_float32(first) - at_least_float32(second)
    return F.binary_cross_entropy_with_logits(margins, labels.to(margins.dtype), reduction="none")


def preference_label_loss(first: Tensor, second: Tensor, labels: Tensor, pair_count: Count = None) -> Tensor:
    """Pair mean of preference_label_losses."""
    return _row_mean(preference_label_losses(first, second, labels), pair_count)


def centering_penalty(chosen: Tensor, rejected: Tensor, *, coef: float, pair_count: Count = None) -> Tensor:
    """Pair mean of coef * (chosen + rejected)^2, which keeps rewards near 0 (Eisenstein et al. 2023)."""
    require_same_shape(chosen=chosen, rejected=rejected)
    return coef * _row_mean((at_least_float32(chosen) + at_least_float32(rejected)).square(), pair_count)


def preference_probability(first: Tensor, second: Tensor) -> Tensor:
    """sigmoid(first - second), [N]: how likely the first response is preferred. Swapped, the two add up to 1."""
    require_same_shape(first=first, second=second)
    return (at_least_float32(first) - at_least_float32(second)).sigmoid()


def preference_accuracy(chosen: Tensor, rejected: Tensor, pair_count: Count = None) -> Tensor:
    """Share of the pairs whose chosen reward is strictly larger. A tie is no success: see preference_ties."""
    require_same_shape(chosen=chosen, rejected=rejected)
    return _row_mean((chosen > rejected).to(at_least_float32(chosen).dtype), pair_count)


def preference_ties(chosen: Tensor, rejected: Tensor) -> Tensor:
    """How many pairs have two equal rewards, int64 scalar."""
    require_same_shape(chosen=chosen, rejected=rejected)
    return (chosen == rejected).sum()


def _row_mean(pair_losses: Tensor, pair_count: Count) -> Tensor:
    return masked_mean(pair_losses, torch.ones_like(pair_losses, dtype=torch.bool), pair_count)


def _surrogates(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor, clip_ratio: float
) -> tuple[Tensor, Tensor]:
    """The surrogate objective without and with clipping, both [B, T] and 0 on padding."""
    require_same_shape(logprobs=logprobs, advantages=advantages)
    ratio = probability_ratio(logprobs, old_logprobs, response_mask)
    advantages = at_least_float32(advantages).where(response_mask, 0.0)
    return ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages


def _squared_errors(
    values: Tensor, old_values: Tensor, returns: Tensor, response_mask: Tensor, value_clip: float | None
) -> tuple[Tensor, Tensor]:
    """The squared error of the values as they are and of the clipped ones, both [B, T] and 0 on padding."""
    require_same_shape(values=values, old_values=old_values, returns=returns, response_mask=response_mask)
    values, old_values, returns = (at_least_float32(x).where(response_mask, 0.0) for x in (values, old_values, returns))
    free = (values - returns).square()
    if value_clip is None:
        return free, free
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return free, (clipped - returns).square()


def _log_odds(mean_logprobs: Tensor) -> Tensor:
    """ln(p / (1 - p)) from ln p, with ln(1 - p) exact on both sides of 1/2 (Maechler 2012, log1mexp)."""
    mean_logprobs = at_least_float32(mean_logprobs)
    # Probability 1 has infinite odds: the largest that the precision knows stand for it, without gradient.
    below_zero = mean_logprobs.clamp(max=-torch.finfo(mean_logprobs.dtype).tiny)
    likely = below_zero > -math.log(2)
    log_complement = torch.where(
        likely,
        (-below_zero.where(likely, -1.0).expm1()).log(),
        (-below_zero.where(~likely, -1.0).exp()).log1p(),
    )
    return below_zero - log_complement
