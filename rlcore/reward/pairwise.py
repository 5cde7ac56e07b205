"""The pairwise reward model: which of two texts is preferred."""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.functional.losses import preference_label_loss
from rlcore.reward.model import RewardModel


class PairwiseRewardModel(RewardModel):
    """A reward model that compares: the score of a pair is the difference of two rewards.

    The probability that the first text is preferred is sigmoid(score) (Bradley & Terry 1952). A text compared with
    itself gets 1/2. Without dropout, exchanging the two turns the sign of the score round, so the two probabilities add
    up to 1.

    Args:
        config, base_model: see RewardModel.

    Raises:
        ConfigError: config.num_labels is not 1, or see RewardModel.
        CheckpointError: see RewardModel.
    """

    def __init__(self, config: RewardModelConfig, base_model: PreTrainedModel | None = None):
        if config.num_labels != 1:
            raise ConfigError(f"num_labels={config.num_labels}: expected 1, as a comparison weighs one reward each.")
        super().__init__(config, base_model)

    def forward_pair(
        self, input_ids_a: Tensor, attention_mask_a: Tensor, input_ids_b: Tensor, attention_mask_b: Tensor
    ) -> Tensor:
        """Scores [N, 1] of N pairs, from one forward pass: log-odds that A is preferred to B.

        Args:
            input_ids_a, attention_mask_a: [N, L] of the first texts; mask 1 on real tokens.
            input_ids_b, attention_mask_b: [N, M] of the second texts.

        Raises:
            DataError: the numbers of rows differ or are 0, the shapes do not fit, or a row has no real token.
        """
        first, second = self.pair_scores(input_ids_a, attention_mask_a, input_ids_b, attention_mask_b)
        # In one pass, rounding and dropout would prefer one of two equal texts.
        equal = _equal_rows(input_ids_a, attention_mask_a, input_ids_b, attention_mask_b)
        return (first - second).where(~equal, 0.0).unsqueeze(-1)

    def compute_bradley_terry_loss(
        self,
        input_ids_a: Tensor,
        attention_mask_a: Tensor,
        input_ids_b: Tensor,
        attention_mask_b: Tensor,
        labels: Tensor,
    ) -> Tensor:
        """Mean over N pairs of -labels * log P(A) - (1 - labels) * log P(B), in nats; P(A) = sigmoid(score).

        Args:
            input_ids_a, attention_mask_a, input_ids_b, attention_mask_b: see forward_pair.
            labels: [N] or [N, 1], of any number type: 1 if A is preferred, 0 if B is; between them, the share of the
                judges who prefer A.

        Raises:
            DataError: a label is no number from 0 to 1, there is not one for each pair, or see forward_pair.
        """
        targets = _checked_labels(labels, len(input_ids_a))
        first, second = self.pair_scores(input_ids_a, attention_mask_a, input_ids_b, attention_mask_b)
        return preference_label_loss(first, second, targets.to(first.device))


def _equal_rows(ids_a: Tensor, mask_a: Tensor, ids_b: Tensor, mask_b: Tensor) -> Tensor:
    """Which rows of two rectangles are the same tokens in the same columns, bool [N]; what is masked counts as none."""
    width = max(ids_a.shape[1], ids_b.shape[1])
    rows_a, rows_b = (
        F.pad(ids.where(mask.bool(), -1), (0, width - ids.shape[1]), value=-1)
        for ids, mask in ((ids_a, mask_a), (ids_b, mask_b))
    )
    return (rows_a == rows_b).all(dim=1)


def _checked_labels(labels: Tensor, pairs: int) -> Tensor:
    labels = torch.as_tensor(labels)
    if labels.shape not in {(pairs,), (pairs, 1)}:
        raise DataError(
            f"Found labels of shape {list(labels.shape)} for {pairs} pairs, expected [{pairs}] or [{pairs}, 1]."
        )
    labels = labels.reshape(pairs).double()
    wrong = ~((labels >= 0) & (labels <= 1))  # NaN is neither
    if bool(wrong.any()):
        rows = wrong.nonzero().flatten().tolist()
        raise DataError(
            f"Labels {rows}: found {labels[wrong].tolist()}, expected 1 where A is preferred, 0 where B is, "
            "or a share between them."
        )
    return labels
