"""The multi-objective reward model: several rewards of one text, and their weighted sum."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.functional.masking import require_same_shape
from rlcore.functional.precision import at_least_float32
from rlcore.reward.model import RewardModel
from rlcore.reward.texts import Text, score_rows


class MultiObjectiveRewardModel(RewardModel):
    """K rewards of a token row, one for each objective, from one body and one head.

        combined = (sum_k weight_k * reward_k - reward_shift) / reward_scale

    Whatever asks for one score (`scores`, `predict_rewards`, a reward source) gets the combined reward.

    Args:
        config: see RewardModel; num_labels is 1 or num_objectives.
        num_objectives: K, at least 1.
        objective_weights: K finite numbers of at least 0, not all of them 0, used as they are; None weighs each 1 / K.
            They are saved with the model.
        base_model: see RewardModel.

    Attributes:
        config: that of the model, with num_labels = K; the one that was passed stays as it is.
        num_objectives: K.
        objective_weights: buffer, float32 [K].

    Raises:
        ConfigError: weights or num_objectives are not as above, num_labels is another number, or see RewardModel.
        CheckpointError: see RewardModel.
    """

    objective_weights: Tensor

    def __init__(
        self,
        config: RewardModelConfig,
        num_objectives: int = 3,
        objective_weights: Sequence[float] | None = None,
        base_model: PreTrainedModel | None = None,
    ):
        weights = _checked_weights(num_objectives, objective_weights)
        if config.num_labels not in (1, num_objectives):
            raise ConfigError(
                f"num_labels={config.num_labels}, num_objectives={num_objectives}: expected the same, or num_labels=1."
            )
        super().__init__(config.model_copy(update={"num_labels": num_objectives}), base_model)
        self.num_objectives = num_objectives
        self.register_buffer("objective_weights", torch.tensor(weights, device=self.head.weight.device))

    def forward(  # type: ignore[override]  # the documented order of arguments
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_all_objectives: bool = False,
        return_dict: bool = True,
    ) -> dict[str, Tensor] | Tensor:
        """Rewards of B rows.

        Args:
            input_ids, attention_mask: see RewardModel.forward.
            return_all_objectives: give the rewards of all objectives, too.
            return_dict: False returns `rewards` alone.

        Returns:
            `rewards`, float32: [B, K] with return_all_objectives, else the combined reward [B, 1]; `combined_reward`
            [B, 1]; `pooled_output` [B, H]; `last_hidden_state` [B, L, H].

        Raises:
            DataError: the shapes do not fit, or a row has no real token.
        """
        objectives, hidden_states = self.head_outputs(input_ids, attention_mask)
        combined = self.normalized(self.combine_objectives(objectives))
        rewards = objectives if return_all_objectives else combined
        return {"rewards": rewards, "combined_reward": combined, **hidden_states} if return_dict else rewards

    def objectives(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Rewards of all objectives, [B, K]; errors as in forward."""
        return cast(Tensor, self(input_ids, attention_mask, return_all_objectives=True, return_dict=False))

    def combine_objectives(self, rewards: Tensor) -> Tensor:
        """Weighted sum over the objectives, not normalised: [B, K] to [B, 1].

        Raises:
            DataError: there are not K rewards in a row.
        """
        if rewards.ndim != 2 or rewards.shape[1] != self.num_objectives:
            raise DataError(f"Found rewards of shape {list(rewards.shape)}, expected [rows, {self.num_objectives}].")
        return (rewards * self.objective_weights).sum(dim=1, keepdim=True)

    def require_scalar(self) -> None:
        """The combined reward is one for each row."""

    def compute_multi_objective_loss(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        target_rewards: Tensor,
        objective_mask: Tensor | Sequence[bool] | None = None,
        objective_counts: Tensor | Sequence[float] | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Weighted sum of the squared errors of the objectives, each a mean over its labelled rows.

            loss = sum_k weight_k * sum_i m_ik * (reward_ik - target_ik)^2 / n_k

        m_ik is 1 where row i has a label for objective k and the mask wants it. An objective without such a row adds 0;
        without any, the loss is 0 and has a gradient of zeros.

        Args:
            input_ids, attention_mask: [B, L].
            target_rewards: [B, K], reward units; NaN is a missing label.
            objective_mask: bool or 0/1, [K] for all rows alike or [B, K]; None wants all.
            objective_counts: [K], the n_k of the whole optimiser step, which makes micro-batches add up to one batch;
                None counts the labels of this batch.

        Returns:
            the loss, a scalar with gradient, and `objective_<k>_loss`, the mean squared error before the weight, for
            each k from 0.

        Raises:
            DataError: a shape does not fit, a target is infinite, a mask has an entry other than 0 and 1, or a count is
                no finite number of at least 0.
        """
        rewards = self.objectives(input_ids, attention_mask)
        targets = torch.as_tensor(target_rewards, device=rewards.device)
        labelled = labelled_entries(targets, rewards.shape, objective_mask)
        counts = None if objective_counts is None else self._checked_counts(objective_counts)
        losses = objective_losses(rewards, targets, labelled, counts)
        names = (f"objective_{index}_loss" for index in range(self.num_objectives))
        return self.weigh(losses), dict(zip(names, losses.detach().tolist(), strict=True))

    def weigh(self, losses: Tensor) -> Tensor:
        """Weighted sum of the losses of the objectives, [K] to a scalar."""
        return (losses * self.objective_weights).sum()

    def predict_objectives(
        self,
        texts: Sequence[Text],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        batch_size: int = 8,
    ) -> list[list[float]]:
        """The K rewards of each text, in the order given; see RewardModel.predict_rewards."""
        rows, pad_id = self.encoded(texts, tokenizer, max_length)
        return score_rows(self, self.objectives, rows, pad_id=pad_id, batch_size=batch_size)

    def _checked_counts(self, counts: Tensor | Sequence[float]) -> Tensor:
        tensor = torch.as_tensor(counts, dtype=torch.float32, device=self.objective_weights.device)
        require_same_shape(objective_counts=tensor, objective_weights=self.objective_weights)
        if not bool((tensor.isfinite() & (tensor >= 0)).all()):
            raise DataError(f"objective_counts: found {tensor.tolist()}, expected finite numbers of at least 0.")
        return tensor


def objective_losses(rewards: Tensor, target_rewards: Tensor, labelled: Tensor, counts: Tensor | None = None) -> Tensor:
    """Mean squared error of each objective over its labelled rows, [K], at least float32; 0 where there is none.

    Args:
        rewards, target_rewards: float [B, K], reward units. Targets that are not labelled may be anything.
        labelled: bool [B, K].
        counts: float [K], rows to divide by; None counts the labelled ones.

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(rewards=rewards, target_rewards=target_rewards, labelled=labelled)
    rewards = at_least_float32(rewards)
    # A missing target is NaN, so it must be gone before the subtraction: its gradient would be NaN, too.
    errors = rewards - target_rewards.to(rewards.dtype).where(labelled, 0.0)
    divisors = (labelled.sum(dim=0) if counts is None else counts).to(rewards.dtype)
    return errors.where(labelled, 0.0).square().sum(dim=0) / divisors.where(divisors > 0, 1.0)


def labelled_entries(
    target_rewards: Tensor, shape: Sequence[int], objective_mask: Tensor | Sequence[bool] | None = None
) -> Tensor:
    """Which targets count, bool [B, K]: those that are numbers and that the mask wants.

    Args:
        target_rewards: [B, K]; NaN is a missing label.
        shape: (B, K).
        objective_mask: bool or 0/1, [K] or [B, K]; None wants all.

    Raises:
        DataError: a shape does not fit, a wanted target is infinite, or the mask has other entries.
    """
    if target_rewards.shape != tuple(shape):
        raise DataError(f"Found target_rewards of shape {list(target_rewards.shape)}, expected {list(shape)}.")
    labelled = ~target_rewards.isnan()
    if objective_mask is not None:
        mask = torch.as_tensor(objective_mask, device=target_rewards.device)
        if mask.shape not in {tuple(shape), tuple(shape[1:])}:
            raise DataError(
                f"Found objective_mask of shape {list(mask.shape)}, expected [{shape[1]}] or {list(shape)}."
            )
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise DataError(f"objective_mask: found {mask.tolist()}, expected entries 0 and 1, or False and True.")
        labelled = labelled & mask.bool()
    if bool((labelled & target_rewards.isinf()).any()):
        rows = (labelled & target_rewards.isinf()).any(dim=1).nonzero().flatten().tolist()
        raise DataError(f"Rows {rows}: found an infinite target, expected finite numbers, or NaN for a missing label.")
    return labelled


def _checked_weights(num_objectives: Any, weights: Sequence[float] | None) -> list[float]:
    if isinstance(num_objectives, bool) or not isinstance(num_objectives, int) or num_objectives < 1:
        raise ConfigError(f"num_objectives={num_objectives!r}: expected a whole number of at least 1.")
    if weights is None:
        return [1 / num_objectives] * num_objectives
    found = weights.tolist() if isinstance(weights, Tensor) else list(weights)
    if len(found) != num_objectives:
        raise ConfigError(f"Found {len(found)} objective_weights for {num_objectives} objectives. Pass one for each.")
    for weight in found:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            # The same weights weigh the losses: a negative one would be learned by being as wrong as possible.
            raise ConfigError(
                f"objective_weights={found}: found {weight!r}, expected finite numbers of at least 0. "
                "Turn the sign of the targets round where less is better."
            )
    if not any(found):
        raise ConfigError(f"objective_weights={found}: expected at least one above 0.")
    return [float(weight) for weight in found]
