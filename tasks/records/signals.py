"""SIGINT and SIGTERM as an exception that cannot get lost."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class _Asked:
    """What the process was asked for: the signal that arrived first, and the exception that it stands for."""

    number: int | None = None
    exception: Callable[[int], BaseException] | None = None
    patience: float = 0.0


def raise_on_signals(exception: Callable[[int], BaseException], on_first: Callable[[], None] = lambda: None) -> None:
    """From here on SIGINT and SIGTERM raise an exception in the main thread.

    A signal that arrives while the exception is on its way is left at that: it must not break into the clean-up. One
    that arrives after somebody dropped the exception, as Python does in a `__del__`, raises it again.

    Args:
        exception: makes it from the number of the signal.
        on_first: called once, when the first signal arrives.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if _Asked.number is None:
            _Asked.number = number
            on_first()
            if _Asked.patience:
                signal.setitimer(signal.ITIMER_REAL, _Asked.patience)
                return
        raise_if_asked()

    _Asked.number, _Asked.exception, _Asked.patience = None, exception, 0.0
    for number in NUMBERS:
        signal.signal(number, handle)


def wait_for_a_look(seconds: float) -> None:
    """From here on the first signal waits for the next `raise_if_asked`, where state can be saved.

    Args:
        seconds: after which it breaks in wherever the process is. A second signal does so at once.
    """
    if _Asked.exception is not None and not _Asked.patience:
        _Asked.patience = seconds
        signal.signal(signal.SIGALRM, lambda number, frame: raise_if_asked())


def raise_if_asked() -> None:
    """Raise for a signal that arrived and whose exception nobody caught. For loops that last."""
    if _Asked.number is None or _Asked.exception is None:
        return
    error = _Asked.exception(_Asked.number)
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, type(error)):
            return
        handled = handled.__context__
    if _Asked.patience:
        signal.setitimer(signal.ITIMER_REAL, 0)
    raise error


def ignore_signals() -> None:
    """Their exception was caught: the process is about to end, and nothing may break into that."""
    _Asked.number = None
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_raise(exception: Callable[[int], BaseException], on_first: Callable[[], None]) -> Iterator[None]:
    """`raise_on_signals` within the block; at its end a signal whose exception was dropped raises it once more."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    raise_on_signals(exception, on_first)
    try:
        yield
        raise_if_asked()
    finally:
        _Asked.number = _Asked.exception = None
        for number, handler in before.items():
            signal.signal(number, handler)
