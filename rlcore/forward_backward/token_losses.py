"""Losses over token rows by name: one log-probability for each real token that has a predecessor and a label."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward.token_checks import (
    UNLIMITED,
    Limits,
    check_coefficients,
    check_ids,
    check_length,
    check_mask,
    token_ids,
)
from rlcore.functional.logprobs import IGNORED_LABEL, entropy, token_logprobs
from rlcore.functional.losses import (
    clip_fraction,
    clipped_value_loss,
    importance_sampling_loss,
    ppo_policy_loss,
    probability_ratio,
)
from rlcore.functional.masking import masked_mean, require_same_shape

LossTerms = tuple[Tensor, Mapping[str, Tensor | float]]
TokenLoss = Callable[..., LossTerms]

SPELLINGS = {"old_log_probs": "old_logprobs"}


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows of tokens and what they are trained to predict."""

    input_ids: Tensor
    """int64 [B, L]."""
    attention_mask: Tensor | None
    """[B, L], 1 on real tokens; None where all are."""
    labels: Tensor
    """int64 [B, L], -100 where nothing is learned; the label of a token sits at the token's own column."""

    @property
    def targets(self) -> Tensor:
        """int64 [B, L-1]: what column t predicts. Padding, and a first token after padding, are -100."""
        targets = self.labels[:, 1:]
        if self.attention_mask is None:
            return targets
        real = self.attention_mask.bool()
        return targets.where(real[:, 1:] & real[:, :-1], IGNORED_LABEL)


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What a model says about the targets of token rows. M = L - 1."""

    logits: Tensor
    """float [B, M, V]."""
    logprobs: Tensor
    """float32 [B, M], nats; 0 where the target is ignored."""
    mask: Tensor
    """bool [B, M], True on targets that count."""

    @property
    def entropies(self) -> Tensor:
        """float32 [B, M], nats; 0 where the target is ignored."""
        return _scatter(entropy(self.logits[self.mask]), self.mask)


def token_rows(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    labels: Tensor | None,
    device: torch.device,
    limits: Limits = UNLIMITED,
) -> TokenRows:
    """The rows on a device, checked. Without labels the tokens are their own labels.

    Raises:
        DataError: input_ids are no token ids [B, L] with B of at least 1 and L of at least 2, the shapes differ, an id
            or a row is beyond the limits, or the mask is not of zeros and ones or of zeros alone.
    """
    input_ids = token_ids("input_ids", input_ids)
    if input_ids.ndim != 2 or input_ids.shape[0] < 1 or input_ids.shape[1] < 2:
        raise DataError(
            f"Found input_ids of shape {list(input_ids.shape)}, expected [rows, tokens] with a row and at least 2 "
            "tokens: the first one only predicts. Add a dimension, or drop rows that are too short."
        )
    check_ids("input_ids", input_ids, limits.vocab_size)
    labels = input_ids if labels is None else token_ids("labels", labels)
    require_same_shape(input_ids=input_ids, labels=labels)
    if labels is not input_ids:
        check_ids("labels", labels, limits.vocab_size)
    if attention_mask is not None:
        check_mask(attention_mask)
        require_same_shape(input_ids=input_ids, attention_mask=attention_mask)
        attention_mask = attention_mask.to(device)
    check_length(attention_mask, input_ids.shape[1], limits.context)
    return TokenRows(input_ids.to(device), attention_mask, labels.to(device))


def token_scores(logits: Tensor, rows: TokenRows) -> TokenScores:
    """Log-probability of each target: logprobs[:, t] = log p(labels[:, t+1] | tokens up to t).

    Args:
        logits: float [B, L, V]. Only the rows of counted targets are read, so NaN on padding harms nothing.
    """
    targets = rows.targets
    mask = targets != IGNORED_LABEL
    predicting = logits[:, :-1]
    return TokenScores(predicting, _scatter(token_logprobs(predicting[mask], targets[mask]), mask), mask)


def cross_entropy(scores: TokenScores) -> LossTerms:
    """Mean of -logprobs over the counted targets, in nats per token."""
    return -masked_mean(scores.logprobs, scores.mask), {}


def importance_sampling(scores: TokenScores, *, old_logprobs: Tensor, advantages: Tensor) -> LossTerms:
    """Mean of -exp(logprobs - old_logprobs) * advantages over the counted targets, in reward units. Nothing is clipped.

    Args:
        scores: of the current policy.
        old_logprobs, advantages: float [B, M], M = L - 1, aligned with the targets.
    """
    ratio = probability_ratio(scores.logprobs.detach(), old_logprobs, scores.mask)
    loss = importance_sampling_loss(scores.logprobs, old_logprobs, advantages, scores.mask)
    return loss, {"policy/loss": loss.detach(), "policy/ratio_mean": masked_mean(ratio, scores.mask)}


def ppo(
    scores: TokenScores,
    *,
    old_logprobs: Tensor,
    advantages: Tensor,
    values: Tensor | None = None,
    returns: Tensor | None = None,
    old_values: Tensor | None = None,
    clip_ratio: float = 0.2,
    value_clip: float | None = None,
    value_coef: float = 0.5,
    entropy_coef: float = 0.0,
) -> LossTerms:
    """Clipped surrogate + value_coef * value loss - entropy_coef * entropy (Schulman et al. 2017, eq. 9), as means.

    Args:
        scores: of the current policy.
        old_logprobs, advantages: float [B, M], M = L - 1, aligned with the targets.
        values, returns: float [B, M]; both or neither. The critic learns as far as values carries a gradient.
        old_values: float [B, M], the values at sampling time; needed where value_clip is a number.
        clip_ratio, value_clip, value_coef, entropy_coef: as in PPOConfig; None does not clip values.

    Raises:
        DataError: values without returns or the other way round, value_clip without old_values, or unequal shapes.
    """
    mask = scores.mask
    policy_loss = ppo_policy_loss(scores.logprobs, old_logprobs, advantages, mask, clip_ratio=clip_ratio)
    clipped = clip_fraction(scores.logprobs.detach(), old_logprobs, advantages, mask, clip_ratio=clip_ratio)
    loss, metrics = policy_loss, {"policy/loss": policy_loss.detach(), "policy/clip_fraction": clipped}
    if (values is None) != (returns is None):
        raise DataError("Found only one of values and returns. Pass both to train the critic, or neither.")
    if values is not None and returns is not None:
        if value_clip is not None and old_values is None:
            raise DataError(
                "Found value_clip without old_values. Pass the values at sampling time, or value_clip=None."
            )
        start = values.detach() if old_values is None else old_values
        value_loss = clipped_value_loss(values, start, returns, mask, value_clip=value_clip)
        loss = loss + value_coef * value_loss
        metrics["value/loss"] = value_loss.detach()
    if entropy_coef:
        entropy_mean = masked_mean(scores.entropies, mask)
        loss = loss - entropy_coef * entropy_mean
        metrics["policy/entropy_mean"] = entropy_mean.detach()
    return loss, metrics


LOSSES: dict[str, TokenLoss] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
}


def loss_named(name: str) -> TokenLoss:
    """The loss of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in LOSSES:
        raise ConfigError(f"Unknown loss_fn {name!r}. Use one of {', '.join(LOSSES)}, or pass a function of your own.")
    return LOSSES[name]


def loss_arguments(name: str, given: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The keyword arguments of a named loss, tensors moved to the device; `old_log_probs` is read as `old_logprobs`.

    Raises:
        ConfigError: an argument is missing, unknown, out of range, or given in both spellings.
    """
    arguments: dict[str, Any] = {}
    for spelling, value in given.items():
        keyword = SPELLINGS.get(spelling, spelling)
        if keyword in arguments:
            raise ConfigError(f"loss_fn {name!r}: found {keyword} in two spellings. Pass it once.")
        arguments[keyword] = value.to(device) if isinstance(value, Tensor) else value
    parameters = [p for p in inspect.signature(loss_named(name)).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known = [parameter.name for parameter in parameters]
    missing = [p.name for p in parameters if p.default is p.empty and arguments.get(p.name) is None]
    unknown = [keyword for keyword in arguments if keyword not in known]
    if missing or unknown:
        raise ConfigError(
            f"loss_fn {name!r}: missing {missing}, unknown {unknown} in loss_fn_kwargs. It takes {known or 'none'}."
        )
    check_coefficients(arguments)
    return arguments


def _scatter(chosen: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(mask, chosen)
