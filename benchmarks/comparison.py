"""A row that compares two arms: parity first, then rounds, then the verdict."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from benchmarks.models import model_folder
from benchmarks.parity import exchange
from benchmarks.process import ArmFailed, Worker, interpreter
from benchmarks.protocol import Measurement
from benchmarks.ratios import Spread, reaches, spread_of
from benchmarks.results import BELOW, NOT_SHOWN, REACHED, Result
from benchmarks.rounds import Round, run_fresh_rounds, run_rounds
from benchmarks.workloads import SHAPES

MEMORY_ROUNDS = 3
"""Memory repeats to a few per cent, and each of its rounds starts two processes."""


def cpu_per_count(unit: Measurement) -> float:
    """CPU seconds per counted token or pair."""
    return unit.cost


def unit_peak(unit: Measurement) -> float:
    """Bytes that the unit needed beside what was there."""
    return float(unit.unit_peak_bytes)


def peak_above_imports(unit: Measurement) -> float:
    """Bytes that building and one unit needed beside what the imports had."""
    return float(unit.peak_bytes)


@dataclass(frozen=True)
class Comparison:
    """Two arms on the same work.

    Args:
        name, title: of the row.
        environment: of the peer; see process.interpreter.
        ours, peer: `module:Name` below benchmarks.arms.
        must, aim: ratio peer / ours that counts as reached; what the work aims at.
        shape: key of SHAPES; None where no model is needed.
        mean_length: see models.model_folder.
        models: settings that name a folder, with the seed of their weights; in peer_only where ours has none.
        settings: of both arms.
        ours_only, peer_only: settings of one side.
        smoke: settings that make it tiny.
        parity: settings under which the arms are compared, where they are not those of the rounds.
        counted: what Work.count counts.
        cost: what a ratio is made of.
        note: what a reader has to know beside the numbers.
    """

    name: str
    title: str
    environment: str
    ours: str
    peer: str
    must: float
    aim: str
    shape: str | None = "a"
    mean_length: int | None = None
    models: Mapping[str, int] = field(default_factory=lambda: {"model": 0})
    settings: Mapping[str, Any] = field(default_factory=dict)
    ours_only: Mapping[str, Any] = field(default_factory=dict)
    peer_only: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)
    counted: str = "tokens"
    cost: Callable[[Measurement], float] = cpu_per_count
    note: str = ""

    def measure(self, rounds: int, *, smoke: bool = False) -> Result:
        """The row, measured; what goes wrong is a reason why it is not shown."""
        if interpreter(self.environment) is None:
            return self._not_shown(f"skipped: {self.environment} is not installed, run benchmarks/peers.sh", smoke)
        try:
            done = self._rounds(rounds, smoke)
        except (ArmFailed, _NoParity) as error:
            return self._not_shown(str(error), smoke)
        return self._judged(done, smoke)

    def _rounds(self, count: int, smoke: bool) -> list[Round]:
        if self.cost is not cpu_per_count:
            self._check_parity(smoke)
            return run_fresh_rounds(
                lambda: self._worker(smoke, is_ours=True),
                lambda: self._worker(smoke, is_ours=False),
                min(count, MEMORY_ROUNDS),
            )
        if self.parity:
            self._check_parity(smoke)
        with self._worker(smoke, is_ours=True) as ours, self._worker(smoke, is_ours=False) as peer:
            ours.build()
            peer.build()
            if not self.parity:
                _require_parity(ours, peer)
            # The first unit of a process warms up.
            ours.unit()
            peer.unit()
            return run_rounds(ours, peer, count)

    def _check_parity(self, smoke: bool) -> None:
        with (
            self._worker(smoke, is_ours=True, parity=self.parity) as ours,
            self._worker(smoke, is_ours=False, parity=self.parity) as peer,
        ):
            ours.build()
            peer.build()
            _require_parity(ours, peer)

    def settings_of(self, is_ours: bool, *, smoke: bool = False) -> dict[str, Any]:
        """Keywords of an arm; a model is the seed of its weights, not yet its folder."""
        own, others = (self.ours_only, self.peer_only) if is_ours else (self.peer_only, self.ours_only)
        models = {name: seed for name, seed in self.models.items() if self.shape is not None and name not in others}
        settings: dict[str, Any] = {**self.settings, **own, **models}
        return settings | {name: value for name, value in self.smoke.items() if smoke and name in settings}

    def _worker(self, smoke: bool, *, is_ours: bool, parity: Mapping[str, Any] = MappingProxyType({})) -> Worker:
        settings = {**self.settings_of(is_ours, smoke=smoke), **parity}
        if self.shape is not None:
            shape = "smoke" if smoke else self.shape
            for name in self.models.keys() & settings.keys():
                settings[name] = str(model_folder(shape, self.mean_length, settings[name]))
            if "vocabulary" in settings:
                settings["vocabulary"] = SHAPES[shape].vocabulary
        return Worker("own" if is_ours else self.environment, self.ours if is_ours else self.peer, settings)

    def _judged(self, done: Sequence[Round], smoke: bool) -> Result:
        counted = [each for each in done if each.fault is None]
        shown = counted or (list(done) if smoke else [])
        faults = sorted({each.fault for each in done if each.fault is not None})
        if not shown:
            return self._not_shown(f"invalid: {', '.join(faults)}", smoke, done)
        spread = spread_of([self.cost(each.peer) / self.cost(each.ours) for each in shown])
        loads = [each.load for each in done]
        return Result(
            **self._named(smoke, done),
            status=NOT_SHOWN if smoke else REACHED if reaches(spread, self.must) else BELOW,
            reason="" if counted else f"invalid: {', '.join(faults)}",
            **_numbers(spread),
            load=f"{min(loads):.1f} to {max(loads):.1f}",
            work=f"{_work(shown[-1].ours, self.counted)} | {_work(shown[-1].peer, self.counted)}",
        )

    def _not_shown(self, reason: str, smoke: bool, done: Sequence[Round] = ()) -> Result:
        return Result(**self._named(smoke, done), status=NOT_SHOWN, reason=reason)

    def _named(self, smoke: bool, done: Sequence[Round]) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "must": f"{self.must:g}",
            "must_value": self.must,
            "aim": self.aim,
            "note": self.note,
            "smoke": smoke,
            "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "rounds": [each.as_values() for each in done],
        }


class _NoParity(Exception):
    """The arms do not compute the same."""


def _require_parity(ours: Worker, peer: Worker) -> None:
    found = exchange(ours, peer)
    if found:
        raise _NoParity(f"no parity: {'; '.join(found)}")


def _numbers(spread: Spread) -> dict[str, Any]:
    return {
        "value": str(spread),
        "median": spread.median,
        "least": spread.least,
        "most": spread.most,
        "above_one": f"{spread.above_one} of {spread.rounds}",
    }


def _work(unit: Measurement, counted: str) -> str:
    steps = f", {unit.work.steps} steps" if unit.work.steps else ""
    return f"{unit.work.count} {counted}{steps}, {unit.cpu_s:.2f} s"
