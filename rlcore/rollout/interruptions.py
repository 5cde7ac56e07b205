"""Whether the weights of a trainer are those of a whole iteration."""

from rlcore.errors import RLCoreError


class IterationMark:
    """Set while an iteration moves weights, and still set where an error or Ctrl-C ended it in between.

    Then the count of iterations and the weights do not belong together: to train on would learn a part of the iteration
    twice, and a checkpoint would be of no step.
    """

    def __init__(self) -> None:
        self._begun: int | None = None

    def begin(self, iteration: int) -> None:
        """From here on the weights are between two iterations.

        Args:
            iteration: the one that begins, counted from 0.
        """
        self._begun = iteration

    def end(self) -> None:
        """The weights are those of a whole iteration: one is done, or a checkpoint was taken up."""
        self._begun = None

    def require_whole(self) -> None:
        """Let a trainer pass whose weights are those of a whole iteration.

        Raises:
            RLCoreError: an iteration was interrupted. Names it.
        """
        if self._begun is not None:
            raise RLCoreError(
                f"Found a trainer that was interrupted inside iteration {self._begun + 1}, expected the weights of a "
                "whole iteration. Go back to a checkpoint with load_checkpoint() or resume_dir, or make a new trainer."
            )
