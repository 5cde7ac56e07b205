"""Rows shared out among the processes of a run, and put together again."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from rlcore.errors import RLCoreError
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.processes import portable

ResultT = TypeVar("ResultT")


def in_shares(client: AsyncTrainingClient, count: int, work: Callable[[list[int]], Sequence[ResultT]]) -> list[ResultT]:
    """work(rows) over this process's share of range(count); the results of all processes, in the order of the rows.

    Args:
        client: knows the processes.
        count: rows.
        work: one result for each of the rows it gets, which may be none.

    Raises:
        Exception: what the work raised.
        RLCoreError: what it raised in another process.
    """
    rows = client.processes.share(range(count))
    results: list[tuple[int, ResultT]] = []
    failure: Exception | None = None
    error: RLCoreError | None = None
    try:
        results = list(zip(rows, work(rows), strict=True))
    except Exception as found:  # noqa: BLE001 - the others wait, and are told before it is raised
        failure, error = found, portable(found)
    shares = client.across_processes(lambda processes: processes.gather((results, error))).result()
    if failure is not None:
        raise failure
    for _, found_elsewhere in shares:
        if found_elsewhere is not None:
            raise found_elsewhere
    return [result for _, result in sorted(chain(*(share for share, _ in shares)), key=lambda pair: pair[0])]


def in_first_process(client: AsyncTrainingClient, work: Callable[[nn.Module], ResultT]) -> ResultT:
    """Do work(model) in process 0, without gradients, in the order of the queue; all processes get its result.

    Raises:
        Exception: in process 0, what the work raised.
        RLCoreError: in the others, the same in words.
    """

    def run() -> ResultT:
        with torch.no_grad():
            return work(client.model)

    return client.across_processes(lambda processes: processes.on_first(run)).result()
