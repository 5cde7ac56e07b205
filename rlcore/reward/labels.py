"""Rows with a target for each objective, and what a multi-objective reward model learns from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from rlcore.batches import right_pad
from rlcore.errors import DataError
from rlcore.models import seeded
from rlcore.reward.multi_objective import MultiObjectiveRewardModel, labelled_entries, objective_losses
from rlcore.streams import stream_seed

Targets = Sequence[Sequence[float | None]] | Tensor
"""[N, K], reward units; NaN or None is a missing label."""

LOSS = "reward_model/loss"


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """N rows of tokens with targets; a run of `rlcore.pair_training` learns from them as it does from pairs.

        loss = sum_k weight_k * (1 / N_k) * sum_i m_ik * (reward_ik - target_ik)^2

    over all rows, N_k of them labelled for objective k. A part of n rows counts with the N_k / N * n labels that it has
    on average, so each label of an objective weighs the same, in whatever step it comes.

    Args:
        rows: token ids.
        targets: float [N, K], reward units.
        labelled: bool [N, K], where there is a target.
        pad_id: fills the rows of a batch.
        seed: of dropout.
    """

    rows: list[list[int]]
    targets: Tensor
    labelled: Tensor
    pad_id: int
    seed: int

    def __len__(self) -> int:
        return len(self.rows)

    def length(self, row: int) -> int:
        """Tokens of a row."""
        return len(self.rows[row])

    def loss(
        self, model: nn.Module, rows: Sequence[int], *, pair_count: int, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of these rows over pair_count, the rows of the step, and sums over them."""
        with seeded(stream_seed(self.seed, "dropout", step, rows[0])):
            losses = self._losses(model, rows)
        return cast(MultiObjectiveRewardModel, model).weigh(losses) / pair_count, self._sums(model, losses.detach())

    def sums(self, model: nn.Module, rows: Sequence[int]) -> dict[str, Tensor]:
        """The same sums, of a model in evaluation mode."""
        return self._sums(model, self._losses(model, rows))

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        """`reward_model/loss`, and `reward_model/objective_<k>_loss` before the weight, of pair_count rows."""
        return {name: value / pair_count for name, value in sums.items()}

    def _sums(self, model: nn.Module, losses: Tensor) -> dict[str, Tensor]:
        parts = {f"reward_model/objective_{index}_loss": loss for index, loss in enumerate(losses)}
        return {LOSS: cast(MultiObjectiveRewardModel, model).weigh(losses), **parts}

    def _losses(self, model: nn.Module, rows: Sequence[int]) -> Tensor:
        """Sums over the rows of the squared error of each objective, over the share of rows with its label; [K]."""
        multi = cast(MultiObjectiveRewardModel, model)
        device = multi.head.weight.device
        input_ids, mask = right_pad([self.rows[row] for row in rows], self.pad_id)
        index = torch.tensor(rows)
        return objective_losses(
            multi.objectives(input_ids.to(device), mask.to(device)),
            self.targets[index].to(device),
            self.labelled[index].to(device),
            self.labelled.float().mean(dim=0).to(device),
        )


def labelled_rows(
    rows: list[list[int]], targets: Targets, num_objectives: int, *, pad_id: int, seed: int, owner: str
) -> LabelledRows:
    """Rows with their targets, checked.

    Args:
        rows: token ids, at least one.
        targets: [N, K], see Targets.
        num_objectives: K.
        pad_id, seed: see LabelledRows.
        owner: what the error calls the targets.

    Raises:
        DataError: the shape is not [N, K], a target is infinite or no number, or an objective has no label at all.
    """
    shape = (len(rows), num_objectives)
    tensor = _targets_tensor(targets, owner, shape)
    labelled = labelled_entries(tensor, shape)
    empty = (~labelled.any(dim=0)).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"{owner}: found no label for the objectives {empty}, expected at least one each. "
            "Their part of the head would stay random: leave them out of the model."
        )
    return LabelledRows(rows, tensor, labelled, pad_id, seed)


def _targets_tensor(targets: Targets, owner: str, shape: tuple[int, int]) -> Tensor:
    if isinstance(targets, Sequence):
        targets = [
            [float("nan") if entry is None else entry for entry in row] if isinstance(row, Sequence) else row
            for row in targets
        ]
    try:
        return torch.as_tensor(targets, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{owner}: {error}. Expected numbers of shape {list(shape)}; NaN or None where a label is missing."
        ) from error
