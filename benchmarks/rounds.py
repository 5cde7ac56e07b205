"""Two workers in turn: A B, B A, A B …, never both at once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.process import Worker
from benchmarks.protocol import Measurement
from benchmarks.validity import fault_of, load

ATTEMPTS_PER_ROUND = 2
"""Rounds that do not count are repeated, this often at most on average."""

MakeWorker = Callable[[], Worker]


@dataclass(frozen=True)
class Round:
    """One unit of either side, one right after the other."""

    ours: Measurement
    peer: Measurement
    load: float
    """When it began."""
    fault: str | None
    """Why it does not count."""

    def as_values(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def run_rounds(ours: Worker, peer: Worker, count: int) -> list[Round]:
    """Rounds until so many count, the invalid ones among them; both workers are built and warm.

    Raises:
        ArmFailed: a unit failed.
    """
    done: list[Round] = []
    while sum(each.fault is None for each in done) < count and len(done) < ATTEMPTS_PER_ROUND * count:
        done.append(_round(ours, peer, peer_first=len(done) % 2 == 1))
    return done


def run_fresh_rounds(make_ours: MakeWorker, make_peer: MakeWorker, count: int) -> list[Round]:
    """As run_rounds, each unit the first one of a new process: for memory, which a process does not give back."""
    done = []
    for _ in range(count):
        before = load()
        done.append(Round(_only_unit(make_ours), _only_unit(make_peer), before, None))
    return done


def _round(ours: Worker, peer: Worker, *, peer_first: bool) -> Round:
    before = load()
    measured = {id(worker): worker.unit() for worker in ((peer, ours) if peer_first else (ours, peer))}
    mine, theirs = measured[id(ours)], measured[id(peer)]
    return Round(mine, theirs, before, fault_of(before, [mine, theirs]))


def _only_unit(make: MakeWorker) -> Measurement:
    with make() as worker:
        worker.build()
        return worker.unit()
