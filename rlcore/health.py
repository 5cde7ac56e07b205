"""When a training step must not be taken, weights must not be written, and training must stop."""

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.errors import CheckpointError, ConfigError, TrainingDiverged

logger = logging.getLogger(__name__)

ROUNDING_KL = 1e-6
"""Nats per token that sampling and scoring of one model may differ by."""


class NonFiniteGuard:
    """Counts optimiser steps that were skipped because a number was NaN or infinite.

    Args:
        max_in_a_row: so many skipped steps in a row stop training, at least 1.

    Attributes:
        skipped: skipped steps of the whole run.
        in_a_row: skipped steps since the last good one.
    """

    def __init__(self, max_in_a_row: int):
        if max_in_a_row < 1:
            raise ConfigError(f"max_in_a_row={max_in_a_row}: expected at least 1.")
        self.max_in_a_row = max_in_a_row
        self.skipped = 0
        self.in_a_row = 0

    def accepts(self, **values: float) -> bool:
        """Whether the step may be taken: every value (loss, gradient norm, ...) is finite.

        Raises:
            TrainingDiverged: this was the last of `max_in_a_row` bad steps in a row.
        """
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        if not bad:
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= self.max_in_a_row:
            found = ", ".join(f"{name}={value}" for name, value in bad.items())
            raise TrainingDiverged(
                f"{found} for {self.in_a_row} optimiser steps in a row, expected finite numbers. "
                "The last checkpoint is untouched; lower the learning rate or look at the rewards."
            )
        return False

    def state_dict(self) -> dict[str, int]:
        """The two counts, plain JSON."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the counts of `state_dict`."""
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]


class NegativeKLWatch:
    """Warns once when the mean log-ratio to the reference stays below 0.

    The mean of k1 over tokens that the policy sampled is about the KL, which is never negative. Where it stays below 0
    the tokens were not drawn from the policy as it is scored, and a KL penalty pays for drifting away.

    Args:
        patience: iterations in a row before the warning.
    """

    def __init__(self, patience: int = 10):
        self.patience = patience
        self.in_a_row = 0
        self.warned = False

    def see(self, kl: float) -> None:
        """Note the mean k1 of an iteration, nats per token; rounding around 0 is not below it."""
        self.in_a_row = self.in_a_row + 1 if kl < -ROUNDING_KL else 0
        if self.in_a_row == self.patience and not self.warned:
            self.warned = True
            logger.warning(
                "kl/ref_token_mean has been below 0 for %d iterations, %.3g nats in the last one, expected about the "
                "KL, which is at least 0. The penalty rewards drifting away. Sample with top_p=1 and top_k=0.",
                self.patience,
                kl,
            )


def refuse_non_finite(owner: str, tensors: Mapping[str, Tensor]) -> None:
    """Let tensors pass that hold finite numbers only.

    Raises:
        CheckpointError: one holds NaN or infinity. Names it after its owner.
    """
    for name, tensor in tensors.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{owner}/{name} holds NaN or infinity, expected finite numbers, so nothing was written. "
                "An earlier checkpoint is untouched; lower the learning rate."
            )
