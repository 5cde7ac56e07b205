"""SIGINT and SIGTERM to a run: it ends between two steps, with its state saved."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rlcore.results import StopTraining

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(StopTraining, KeyboardInterrupt):
    """A signal asked the command to stop.

    Attributes:
        exit_code: 130 after SIGINT, 143 after SIGTERM.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Within the block, SIGINT and SIGTERM raise Stopped.

    Yields:
        To be called between two steps: it raises Stopped where a signal has arrived. Before its first call, when
        nothing is trained yet, a signal raises at once, and so does a second signal.
    """
    asked: list[int] = []
    calls: list[None] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1 or not calls:
            raise Stopped(number)
        print("Stopping after this step, whose state is saved. Once more stops at once.", file=sys.stderr)

    def check() -> None:
        calls.append(None)
        if asked:
            raise Stopped(asked[0])

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
