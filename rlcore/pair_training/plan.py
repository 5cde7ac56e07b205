"""When a run over preference pairs does what. Loads no torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rlcore.schedule import learning_rate_share
from rlcore.streams import permutation


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """Steps, order and learning rate of a run. Numbers of pairs are those of all processes together."""

    pair_count: int
    """N, pairs of an epoch, at least 1."""
    pairs_per_step: int
    """Pairs of one optimiser step; the last step of an epoch takes what is left."""
    micro_batch_size: int
    """Pairs of one backward pass, and of one forward pass of an evaluation."""
    num_epochs: int
    """Passes over the pairs. 0 trains nothing."""
    seed: int
    """Fixes the order of the pairs."""
    learning_rate: float
    """Peak learning rate of AdamW."""
    min_learning_rate_ratio: float = 0.0
    """The cosine schedule ends at this share of the peak."""
    warmup_steps: int = 0
    """Optimiser steps of linear warm-up."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm."""
    logging_steps: int = 10
    """Optimiser steps between two reports; the last step is reported too."""
    eval_every: int | None = None
    """Optimiser steps between two evaluations, the last step is evaluated too; None: after each epoch."""
    save_every: int | None = None
    """Optimiser steps between two checkpoints, the last step is saved too; None saves no more than the best step."""
    max_non_finite_steps: int = 3
    """Skipped optimiser steps in a row after which training stops."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one epoch."""
        return math.ceil(self.pair_count / self.pairs_per_step)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_epoch * self.num_epochs

    def epoch(self, epoch: int) -> list[list[int]]:
        """The rows of each optimiser step of an epoch: a random order that (seed, epoch) fixes, each row once."""
        order = permutation(self.pair_count, self.seed, "pairs", epoch)
        return [order[start : start + self.pairs_per_step] for start in range(0, len(order), self.pairs_per_step)]

    def steps_from(self, step: int) -> Iterator[list[int]]:
        """The rows of optimiser step `step`, counted from 0, and of all later ones."""
        first_epoch, skipped = divmod(step, self.steps_per_epoch)
        for epoch in range(first_epoch, self.num_epochs):
            yield from self.epoch(epoch)[skipped if epoch == first_epoch else 0 :]

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of optimiser step `step`, counted from 0: linear warm-up, then a cosine to its least value."""
        share = learning_rate_share(step, self.warmup_steps, self.total_steps)
        if step >= self.warmup_steps:
            share = self.min_learning_rate_ratio + (1 - self.min_learning_rate_ratio) * share
        return self.learning_rate * share

    def is_due(self, step: int, interval: int | None) -> bool:
        """Whether something with this interval happens after `step` steps: at its multiples and at the end."""
        return interval is not None and (step == self.total_steps or step % interval == 0)
