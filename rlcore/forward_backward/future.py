"""What the lane hands back: a future for each queued piece of work, and the results of training work."""

import concurrent.futures
import threading
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from rlcore.errors import RLCoreError

ResultT = TypeVar("ResultT")


@dataclass
class ForwardBackwardOutput:
    """Result of one micro-batch: forward pass and backward pass."""

    loss: float
    """Value of the loss as the loss function returned it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the loss function reported, and `execution_time` in seconds."""
    logits: Tensor | None = None
    """[B, L, V], detached; only from the forms that take `input_ids`."""
    logprobs: Tensor | None = None
    """[B, L-1] nats of token t+1 given the tokens up to t, detached; 0 where the label is ignored."""


@dataclass
class OptimStepOutput:
    """Result of one optimiser step."""

    step: int
    """Optimiser steps made so far; a skipped one does not count."""
    learning_rate: float
    """Rate of the first parameter group that this step used."""
    grad_norm: float
    """L2 norm of the gradients before clipping."""
    metrics: dict[str, float] = field(default_factory=dict)
    """`execution_time` in seconds; `skipped` 1.0 where no step was made, with `non_finite` 1.0 where that was why."""


@dataclass
class StepOutput:
    """Result of one optimiser step over rows that all processes know; the same in all of them."""

    loss: float
    """Sum over the micro-batches of all processes, so the loss of the whole step."""
    metrics: dict[str, float]
    """Sums of what the loss functions reported, likewise."""
    grad_norm: float
    """L2 norm of the gradients before clipping."""
    learning_rate: float
    """Rate of the first parameter group that this step used."""
    step: int
    """Optimiser steps made so far; a skipped one does not count."""
    skipped: bool
    """A loss or gradient was not finite, so nothing was changed."""


@dataclass
class Failure:
    """An error in words, and whether somebody asked for it. Holds no traceback, which would keep activations alive."""

    description: str
    asked: bool = False


class AsyncTrainingFuture(Generic[ResultT]):
    """The coming result of work that was queued in a lane."""

    def __init__(self, thread: threading.Thread, worker: object):
        self._inner: concurrent.futures.Future[ResultT] = concurrent.futures.Future()
        self._thread = thread
        # A worker ends with its last reference; until the work is done, this is one.
        self._worker: object | None = worker
        self._failure: Failure | None = None

    def result(self, timeout: float | None = None) -> ResultT:
        """Wait for the work and return its result. A signal such as Ctrl-C interrupts the wait.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            Exception: what the work raised.
            TimeoutError: the work was not done in time; it goes on.
            concurrent.futures.CancelledError: the work was cancelled before it began.
            RLCoreError: called by work of the same lane, which would wait for itself, or in a forked process.
        """
        self._refuse_an_endless_wait()
        try:
            return self._inner.result(timeout)
        finally:
            self._note_that_somebody_asked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the work and return its error, or None. Waits as `result` does."""
        self._refuse_an_endless_wait()
        try:
            return self._inner.exception(timeout)
        finally:
            self._note_that_somebody_asked()

    def done(self) -> bool:
        """Whether the work ended, with a result, an error or a cancellation."""
        return self._inner.done()

    def cancel(self) -> bool:
        """Cancel work that has not begun; False where it has. A cancelled micro-batch fails its optimiser step."""
        return self._inner.cancel()

    def begin(self) -> bool:
        """For the worker: mark the work as begun; False where it was cancelled."""
        begins = self._inner.set_running_or_notify_cancel()
        if not begins:
            self._worker = None
        return begins

    def succeed(self, result: ResultT) -> None:
        """For the worker: hand over the result."""
        self._inner.set_result(result)
        self._worker = None

    def fail(self, error: BaseException, failure: Failure) -> None:
        """For the worker: hand over the error."""
        self._failure = failure
        self._inner.set_exception(error)
        self._worker = None

    def _refuse_an_endless_wait(self) -> None:
        # Asked in this order: a thread that has ended has no work left.
        if not self._thread.is_alive() and not self._inner.done():
            raise RLCoreError(
                "Found a wait for work whose thread is not in this process: a fork copies no threads. "
                "Wait in the process that queued it."
            )
        if threading.current_thread() is self._thread and not self._inner.done():
            raise RLCoreError(
                "Found a wait for queued work inside work of the same lane, which would never end. "
                "Call the model directly there, or wait in the code that queued it."
            )

    def _note_that_somebody_asked(self) -> None:
        if self._failure is not None:
            self._failure.asked = True
