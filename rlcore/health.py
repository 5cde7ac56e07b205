"""When a training step must not be taken, and when training must stop."""

import math
from collections.abc import Mapping

from rlcore.errors import ConfigError, TrainingDiverged


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
