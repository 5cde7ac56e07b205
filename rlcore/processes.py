"""Data parallelism: several processes, each with a replica of the model and a share of the rows."""

import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch
from torch import distributed, nn

from rlcore.errors import ConfigError, RLCoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What torchrun and accelerate set, and the three MPIs that accelerate knows.
_COUNT_VARIABLES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What work in one process came to, in a form that the others can be told.

    Attributes:
        result: what it returned; None where it failed.
        error: what it raised: an error of ours as it is, others in words.
    """

    result: T | None = None
    error: RLCoreError | None = None


class SingleProcess:
    """One process with all the rows. Everything here is what DataParallel does with a count of 1; loads no accelerate.

    Attributes:
        count: number of processes.
        rank: number of this one, from 0.
        device: where its replica has to be; None where the caller chooses.
    """

    count: int = 1
    rank: int = 0
    device: torch.device | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, the only one that writes files and reports."""
        return True

    def share(self, rows: Sequence[T]) -> list[T]:
        """All rows."""
        return list(rows)

    def gather(self, value: T) -> list[T]:
        """The value alone."""
        return [value]

    def on_first(self, work: Callable[[], T]) -> T:
        """Do the work."""
        return work()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing to add."""

    def copy_from_first(self, model: nn.Module) -> None:
        """Nothing to copy."""


class DataParallel:
    """The processes that `accelerate launch`, `torchrun` or `mpirun` started, each with a replica of the model.

    Methods marked as collective have to be called by all processes, in the same order, and raise RLCoreError where one
    of them has ended. The model is not wrapped, so a
    loss function may call any of its methods; gradients are added once for each optimiser step.

    Attributes:
        count: number of processes.
        rank: number of this one, from 0.
        device: where its replica has to be.

    Raises:
        ConfigError: the launch settings ask for mixed precision, or their processes do not find each other.
    """

    def __init__(self) -> None:
        from accelerate import PartialState

        # Without a GPU, accelerate makes a group only where it is told that there is none.
        state = PartialState(cpu=_asked_for_cpu() or not torch.cuda.is_available())
        self.count: int = state.num_processes
        self.rank: int = state.process_index
        self.device: torch.device = state.device
        # A group that the interpreter's exit finds alive may abort the process. Finalizers run from the newest to the
        # oldest, so lanes have ended before this one.
        weakref.finalize(self, _leave_group)
        if self.count != _process_count():
            raise ConfigError(
                f"Found {_process_count()} launched processes, of which {self.count} found each other. Start all of "
                "them with accelerate launch or torchrun, with one GPU each or with ACCELERATE_USE_CPU=true."
            )
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if precision != "no":
            raise ConfigError(
                f"Found mixed_precision={precision!r} in the launch settings, expected 'no': "
                "training runs in the model's own dtype. Launch with --mixed_precision no."
            )

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, the only one that writes files and reports."""
        return self.rank == 0

    def share(self, rows: Sequence[T]) -> list[T]:
        """The part of rows that is this process's: every count-th, beginning with its rank. May be empty."""
        return list(rows[self.rank :: self.count])

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks (collective).

        Values are pickled; tensors in them have to be on the CPU.
        """
        values: list[T] = [value] * self.count
        with _in_touch():
            distributed.all_gather_object(values, value)
        return values

    def on_first(self, work: Callable[[], T]) -> T:
        """Do work in process 0 alone, such as writing a file; all get its result, or fail as it does (collective).

        Raises:
            Exception: in process 0, what the work raised.
            RLCoreError: in the others, the same where it was one of ours.
        """
        outcome: Outcome[T] = Outcome()
        failure: BaseException | None = None
        if self.is_first:
            outcome, failure = attempt(work)
        return all_results(self.gather(outcome), failure)[0]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes; one that a process lacks counts as 0 there (collective).

        Args:
            parameters: in the same order in all processes.
        """
        parameters = list(parameters)
        held = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        pending = []
        with _in_touch():
            distributed.all_reduce(held)
            for parameter, holders in zip(parameters, held.tolist(), strict=True):
                if holders:
                    own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = own.contiguous()
                    pending.append(distributed.all_reduce(parameter.grad, async_op=True))
            for work in pending:
                work.wait()

    @torch.no_grad()
    def copy_from_first(self, model: nn.Module) -> None:
        """Give the replica the weights and buffers of process 0 (collective)."""
        for tensor in (*model.parameters(), *model.buffers()):
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            with _in_touch():
                distributed.broadcast(values, 0)
            tensor.copy_(values)


Processes = SingleProcess | DataParallel
"""The processes that share the rows of a run."""


def launched_processes() -> Processes:
    """The processes that this one was launched with.

    Raises:
        ConfigError: see DataParallel.
    """
    if _process_count() > 1:
        return _data_parallel()
    if _asked_for_cpu() and "MASTER_ADDR" in os.environ and not any(name in os.environ for name in _COUNT_VARIABLES):
        _warn_of_a_lone_process()
    return SingleProcess()


def sums(terms: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name, added up in the order given; a name that is missing counts as 0."""
    total: dict[str, float] = {}
    for values in terms:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return total


def attempt(work: Callable[[], T]) -> tuple[Outcome[T], BaseException | None]:
    """Do work whose failure has to be told to the other processes before it is raised, or they wait for ever.

    Returns:
        the outcome, to be gathered, and the error itself, both for `all_results`.
    """
    try:
        return Outcome(work()), None
    except BaseException as error:  # noqa: BLE001 - raised by all_results
        told = error if isinstance(error, RLCoreError) else RLCoreError(f"{type(error).__name__}: {error}")
        return Outcome(error=told), error


def all_results(outcomes: Sequence[Outcome[T]], failure: BaseException | None) -> list[T]:
    """The results in the gathered outcomes of all processes.

    Raises:
        BaseException: `failure`, where this process's own work failed.
        RLCoreError: the first error of another process.
    """
    if failure is not None:
        raise failure
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [cast(T, outcome.result) for outcome in outcomes]


@contextlib.contextmanager
def _in_touch() -> Iterator[None]:
    """Around an exchange. Says that another process has gone, where the backends speak of connections.

    Raises:
        RLCoreError: the exchange failed.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RLCoreError(
            "Lost touch with another process of this run, expected all to go on: one has ended or does other work. "
            f"Its log says why; mend that and start all of them again. ({error})"
        ) from error


@functools.cache
def _data_parallel() -> DataParallel:
    return DataParallel()


@functools.cache
def _warn_of_a_lone_process() -> None:
    logger.warning(
        "accelerate launch --cpu started one process whatever --num_processes says, as it had no --mpirun_hostfile. "
        "For several processes use `torchrun --nproc-per-node <count>`."
    )


def _leave_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _process_count() -> int:
    return max(int(os.environ.get(name, "1")) for name in _COUNT_VARIABLES)


def _asked_for_cpu() -> bool:
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
