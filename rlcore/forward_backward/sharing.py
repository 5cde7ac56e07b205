"""Work that several processes do together. What fails in one of them fails in all: none waits for another for ever."""

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TypeVar

import torch

from rlcore.errors import ConfigError
from rlcore.forward_backward.lane import Lane
from rlcore.processes import all_results, attempt

ResultT = TypeVar("ResultT")


def require_agreement(client: Lane, facts: Mapping[str, object]) -> None:
    """Let a run begin whose processes were all told the same. Replicas with other settings would drift apart unseen.

    Args:
        client: knows the processes.
        facts: settings and data by name, as JSON; what JSON does not know counts by its text.

    Raises:
        ConfigError: in all processes, where a fact differs. Names each.
    """
    if client.processes.count == 1:
        return
    told = in_each_process(client, lambda: {name: _sha256(fact) for name, fact in facts.items()})
    different = [name for name in sorted(set(chain(*told))) if len({own.get(name) for own in told}) > 1]
    if different:
        raise ConfigError(
            f"Found processes of one run that differ in {', '.join(different)}, expected the same in all {len(told)}. "
            "Give each process the same settings and the same rows in the same order."
        )


def in_each_process(client: Lane, work: Callable[[], ResultT]) -> list[ResultT]:
    """work() in each process, in the caller's thread; all get the results of all, in the order of the ranks.

    Args:
        client: knows the processes.
        work: may wait for what it queues at the client. It exchanges nothing with the other processes. Tensors that it
            returns have to be on the CPU.

    Raises:
        BaseException: what the work raised.
        RLCoreError: what it raised in another process.
    """
    outcome, failure = attempt(work)
    outcomes = client.across_processes(lambda processes: processes.gather(outcome)).result()
    return all_results(outcomes, failure)


def in_shares(
    client: Lane,
    count: int,
    work: Callable[[list[int]], Sequence[ResultT]],
    together: Sequence[Hashable] | None = None,
) -> list[ResultT]:
    """work(rows) over this process's share of range(count); the results of all processes, in the order of the rows.

    Args:
        client: knows the processes.
        count: rows.
        work: one result for each of the rows it gets, which may be none; else as in `in_each_process`.
        together: for each row what marks its group, whose rows one process gets; None where each row is alone.

    Raises:
        BaseException, RLCoreError: see `in_each_process`.
    """
    groups: dict[Hashable, list[int]] = {}
    for row in range(count):
        groups.setdefault(row if together is None else together[row], []).append(row)
    rows = sorted(chain(*client.processes.share(list(groups.values()))))
    shares = in_each_process(client, lambda: list(zip(rows, work(rows), strict=True)))
    return [result for _, result in sorted(chain(*shares), key=itemgetter(0))]


def in_first_process(client: Lane, work: Callable[[], ResultT]) -> ResultT:
    """work() in process 0, without gradients, in the client's thread and in the order of its queue; all get its result.

    For what reads or writes files, and for what one process decides for all.

    Raises:
        BaseException: in process 0, what the work raised.
        RLCoreError: in the others, the same.
    """

    def run() -> ResultT:
        with torch.no_grad():
            return work()

    return client.across_processes(lambda processes: processes.on_first(run)).result()


def _sha256(fact: object) -> str:
    return hashlib.sha256(json.dumps(fact, sort_keys=True, default=str).encode()).hexdigest()
