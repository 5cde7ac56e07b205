"""One thread that does queued work in the order in which it was queued."""

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rlcore.errors import RLCoreError
from rlcore.forward_backward.future import AsyncTrainingFuture, Failure, ForwardBackwardOutput, OptimStepOutput

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

EXIT_GRACE_S = 10.0
"""How long the interpreter's exit waits for work in flight. Killing a thread inside torch would abort the process."""


@dataclass(slots=True)
class _Job:
    future: AsyncTrainingFuture[Any]
    work: Callable[[], Any]
    on_failure: Callable[[BaseException], None]
    num_threads: int


class Worker:
    """A daemon thread with a first-in-first-out queue. It ends with `shutdown`, with its last reference, or at exit.

    Unfinished work is a reference: nobody has to hold a client to wait for what it queued.
    """

    def __init__(self, device: torch.device):
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._failures: list[Failure] = []
        self._submission = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        # The thread holds the queue, not this object: a worker that nobody refers to can be collected with its model.
        arguments = (self._jobs, self._failures, device)
        self._thread = threading.Thread(target=_work, args=arguments, name="rlcore-lane", daemon=True)
        self._thread.start()
        weakref.finalize(self, _stop, self._jobs, self._failures, self._thread)

    def submit(
        self, work: Callable[[], ResultT], on_failure: Callable[[BaseException], None]
    ) -> AsyncTrainingFuture[ResultT]:
        """Queue work.

        Args:
            work: called in the thread, with as many intra-op threads as the caller has.
            on_failure: called in the thread, in the queue's order, with the error of the work or its cancellation.

        Raises:
            RLCoreError: after `shutdown`, or in a process that was forked from the thread's own.
        """
        future: AsyncTrainingFuture[ResultT] = AsyncTrainingFuture(self._thread, self)
        job = _Job(future, work, on_failure, torch.get_num_threads())
        with self._submission:
            if self._closed:
                raise RLCoreError("Found new work after shutdown(), which ends a client for good. Make a new client.")
            if not self._thread.is_alive():
                raise RLCoreError(
                    f"Found new work in process {os.getpid()}, expected it in {self._process}, where the client's "
                    "thread runs: a fork copies no threads. Make the client in the process that uses it."
                )
            self._jobs.put(job)
        return future

    def shutdown(self, *, cancel_queued: bool = False) -> None:
        """End the thread after the queued work, or after the work in flight. Log errors that nobody asked for."""
        with self._submission:
            self._closed = True
            if cancel_queued:
                _cancel_queued(self._jobs)
            self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        _log_unasked(self._failures)


def _work(jobs: "queue.SimpleQueue[_Job | None]", failures: list[Failure], device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the current device belongs to a thread
    while _run_next(jobs, failures):
        pass


def _run_next(jobs: "queue.SimpleQueue[_Job | None]", failures: list[Failure]) -> bool:
    """Run one job and let go of it; False at the end of the queue."""
    job = jobs.get()
    if job is None:
        return False
    if not job.future.begin():
        _clean_up(job, CancelledError("cancelled before it began"))
        return True
    if torch.get_num_threads() != job.num_threads:
        torch.set_num_threads(job.num_threads)  # the number belongs to a thread
    start = time.perf_counter()
    try:
        result = job.work()
    except BaseException as error:  # noqa: BLE001 - the future carries every error to the thread that asks
        failures[:] = [failure for failure in failures if not failure.asked]
        failures.append(Failure(f"{type(error).__name__}: {error}"))
        _clean_up(job, error)
        job.future.fail(error, failures[-1])
        del job  # this frame is part of the error's traceback, so the future would hold itself
        return True
    if isinstance(result, ForwardBackwardOutput | OptimStepOutput):
        result.metrics["execution_time"] = time.perf_counter() - start
    job.future.succeed(result)
    return True


def _clean_up(job: _Job, error: BaseException) -> None:
    """Call on_failure. Should that fail too, the thread lives on: somebody waits for what is queued."""
    try:
        job.on_failure(error)
    except BaseException:
        logger.exception("Cleaning up after failed work failed as well.")


def _cancel_queued(jobs: "queue.SimpleQueue[_Job | None]") -> int:
    cancelled = 0
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return cancelled
        if job is not None:
            job.future.cancel()
            cancelled += 1


def _log_unasked(failures: list[Failure]) -> None:
    while failures:
        failure = failures.pop(0)
        if not failure.asked:
            logger.error("Queued work failed and nobody asked for its result: %s", failure.description)


def _stop(jobs: "queue.SimpleQueue[_Job | None]", failures: list[Failure], thread: threading.Thread) -> None:
    """End a thread that was not shut down."""
    cancelled = _cancel_queued(jobs)
    if cancelled:
        logger.warning("%d pieces of queued work were dropped at exit. Wait for them, or call shutdown().", cancelled)
    jobs.put(None)
    if threading.current_thread() is not thread:
        thread.join(EXIT_GRACE_S)
    _log_unasked(failures)
