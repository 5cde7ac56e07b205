"""A peer's training loop, stopped after each step until the next one is asked for."""

import threading
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class Gate(TrainerCallback):
    """Runs a trainer's loop in a thread that waits at the end of each optimiser step.

    So a step costs what it costs inside a long run, without the set-up of a run.
    """

    def __init__(self) -> None:
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def step(self, train: Callable[[], Any]) -> None:
        """Let the loop go on to the end of its next step; the first call starts it.

        Raises:
            RuntimeError: the loop ended.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(train,), daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._arrived.acquire()
        if self._fault is not None:
            raise RuntimeError(f"the training loop ended: {self._fault!r}") from self._fault

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait."""
        self._arrived.release()
        self._go.acquire()

    def _run(self, train: Callable[[], Any]) -> None:
        try:
            train()
            self._fault = EOFError("no steps are left")
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that asks
            self._fault = error
        self._arrived.release()
