"""What a reward model learns from preference pairs, and how well it orders them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from rlcore.configs import RewardModelConfig
from rlcore.functional.losses import bradley_terry_loss, centering_penalty, preference_accuracy
from rlcore.models import seeded
from rlcore.pair_training import calibration_error, calibration_gaps
from rlcore.reward.model import RewardModel
from rlcore.reward.pairs import TokenPairs
from rlcore.streams import stream_seed

HISTORY = {
    "loss": "reward_model/loss",
    "accuracy": "reward_model/accuracy",
    "margin": "reward_model/margin_mean",
    "calibration_error": "reward_model/calibration_error",
}
"""What training can return for each optimiser step, and the metric behind each list."""

EVALUATION = {
    "eval_loss": "validation/loss",
    "eval_accuracy": "validation/accuracy",
    "eval_margin": "validation/margin_mean",
    "eval_calibration_error": "validation/calibration_error",
}
"""The same for each evaluation."""

_GAP = "calibration gap "


@dataclass(frozen=True, eq=False)
class RewardObjective:
    """Bradley-Terry loss of a reward model on preference pairs, with a penalty that keeps rewards near 0.

    Args:
        pairs: N pairs.
        pad_id: fills the rows of a batch.
        config: center_rewards_coef, and the seed of dropout.
    """

    pairs: TokenPairs
    pad_id: int
    config: RewardModelConfig

    def __len__(self) -> int:
        return len(self.pairs)

    def length(self, row: int) -> int:
        """Tokens of the longer one of the two sequences of a pair."""
        return self.pairs.length(row)

    def loss(
        self, model: nn.Module, rows: Sequence[int], *, pair_count: int, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the pairs at `rows` over pair_count, and sums over them. Dropout follows (seed, step, first row)."""
        with seeded(stream_seed(self.config.seed, "dropout", step, rows[0])):
            chosen, rejected = self._rewards(model, rows)
        loss = bradley_terry_loss(chosen, rejected, pair_count=pair_count)
        if self.config.center_rewards_coef:
            coef = self.config.center_rewards_coef
            loss = loss + centering_penalty(chosen, rejected, coef=coef, pair_count=pair_count)
        return loss, pair_sums(chosen.detach(), rejected.detach())

    def sums(self, model: nn.Module, rows: Sequence[int]) -> dict[str, Tensor]:
        """See pair_sums."""
        return pair_sums(*self._rewards(model, rows))

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        """Loss without the penalty, strict accuracy, mean margin and expected calibration error."""
        means = {name: sums[name] / pair_count for name in HISTORY.values() if name in sums}
        gaps = [value for name, value in sums.items() if name.startswith(_GAP)]
        return means | {"reward_model/calibration_error": calibration_error(gaps, pair_count)}

    def _rewards(self, model: nn.Module, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rewards of the chosen and of the rejected responses, both [n], from one forward pass.

        Two equal rows have equal rewards, whatever rounding and dropout say of them: no win and no gradient.
        """
        reward_model = cast(RewardModel, model)
        device = reward_model.head.weight.device
        input_ids, mask = (tensor.to(device, non_blocking=True) for tensor in self.pairs.batch(rows, self.pad_id))
        chosen, rejected = reward_model.scores(input_ids, mask).chunk(2)
        ties = torch.tensor([self.pairs.is_tie(row) for row in rows], device=device)
        return chosen, chosen.where(ties, rejected)


def pair_sums(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Sums over n pairs of their loss, of what is right, of their margins, and the calibration gaps, bin by bin.

    Args:
        chosen, rejected: float [n], rewards of the two responses of each pair.
    """
    margins = chosen - rejected
    gaps = calibration_gaps(margins)
    return {
        "reward_model/loss": bradley_terry_loss(chosen, rejected, pair_count=1),
        "reward_model/accuracy": preference_accuracy(chosen, rejected, pair_count=1),
        "reward_model/margin_mean": margins.sum(),
        **{f"{_GAP}{index}": gap for index, gap in enumerate(gaps)},
    }
