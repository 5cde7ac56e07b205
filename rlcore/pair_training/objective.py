"""What a run over preference pairs minimises and reports: the part in which a policy and a reward model differ."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

PairSums = Mapping[str, Tensor]
"""Scalars that add up over pairs, by name."""


class SizedPairs(Protocol):
    """N preference pairs, known by their row."""

    def __len__(self) -> int:
        """N, at least 1."""
        ...

    def length(self, row: int) -> int:
        """Tokens of the longer one of the two sequences of a pair."""
        ...


class PairObjective(SizedPairs, Protocol):
    """N preference pairs and the loss on them.

    Everything is asked for by row, so the loop cuts pairs into steps, shares and micro-batches as it likes. What `loss`
    and `sums` report has to add up over any such parts.
    """

    def loss(self, model: nn.Module, rows: Sequence[int], *, pair_count: int, step: int) -> tuple[Tensor, PairSums]:
        """Loss of the pairs at `rows`, a scalar with gradient, and sums over them.

        Args:
            model: the one under training.
            rows: at least one.
            pair_count: pairs of the whole optimiser step, by which the loss is divided.
            step: optimiser steps before this one. Randomness may depend on (step, rows) alone, so that a resumed run is
                the uninterrupted one.
        """
        ...

    def sums(self, model: nn.Module, rows: Sequence[int]) -> PairSums:
        """The same sums, of a model in evaluation mode and without gradient."""
        ...

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        """Metrics, `<topic>/<what>`, of pair_count pairs from sums over them; one is `<topic>/loss`."""
        ...
