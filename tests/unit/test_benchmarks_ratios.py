"""When a benchmark row counts as reached, and when a round counts at all."""

import pytest

from benchmarks.protocol import Measurement, Work
from benchmarks.ratios import reaches, spread_of
from benchmarks.rounds import run_rounds
from benchmarks.validity import fault_of


def unit(cpu_s: float = 1.0, wall_s: float = 1.0, count: int = 10) -> Measurement:
    return Measurement(Work(count), cpu_s=cpu_s, wall_s=wall_s)


class Scripted:
    """A worker that notes when it is asked and takes the given CPU seconds, the last ones for ever."""

    def __init__(self, name: str, seconds: list[float], asked: list[str], wall_factor: float = 1.0):
        self.name, self.seconds, self.asked, self.wall_factor = name, seconds, asked, wall_factor

    def unit(self) -> Measurement:
        self.asked.append(self.name)
        cpu_s = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return unit(cpu_s, cpu_s * self.wall_factor)


def test_the_spread_is_median_least_and_most():
    assert str(spread_of([3.0, 1.0, 2.0, 0.5, 1.5])) == "1.50 [0.50, 3.00]"
    assert spread_of([3.0, 1.0, 2.0, 0.5, 1.5]).above_one == 3


@pytest.mark.parametrize(
    ("ratios", "must", "reached"),
    [
        ([1.5] * 7, 1.5, True),
        ([1.49] * 7, 1.5, False),
        # the median is there, but 3 of 7 rounds are not above 1
        ([0.9, 0.9, 0.9, 1.6, 1.6, 1.6, 1.6], 1.5, False),
        ([0.9, 0.9, 1.6, 1.6, 1.6, 1.6, 1.6], 1.5, True),
        ([0.98] * 7, 0.97, True),
    ],
)
def test_a_row_reaches_its_must_by_median_and_by_enough_rounds(ratios: list[float], must: float, reached: bool):
    assert reaches(spread_of(ratios), must) is reached


def test_the_cost_is_per_counted_token():
    assert unit(cpu_s=3.0, count=6).cost == 0.5


@pytest.mark.parametrize(
    ("load", "wall_s", "fault"),
    [(2.0, 1.3, None), (2.1, 1.0, "load 2.1 on 2 cores"), (0.0, 1.31, "wall/CPU 1.31")],
)
def test_a_round_counts_on_a_quiet_machine_alone(load: float, wall_s: float, fault: str | None):
    assert fault_of(load, [unit(), unit(wall_s=wall_s)], cores=2) == fault


def test_rounds_alternate_which_side_is_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.rounds.load", lambda: 0.0)
    asked: list[str] = []
    done = run_rounds(Scripted("A", [1.0], asked), Scripted("B", [2.0], asked), 3)
    assert "".join(asked) == "ABBAAB"
    assert [each.peer.cost / each.ours.cost for each in done] == [2.0, 2.0, 2.0]


def test_rounds_that_do_not_count_are_repeated_but_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    loads = iter([9.0, 0.0, 0.0])
    monkeypatch.setattr("benchmarks.rounds.load", lambda: next(loads, 9.0))
    monkeypatch.setattr("benchmarks.validity.os.cpu_count", lambda: 2)
    done = run_rounds(Scripted("A", [1.0], []), Scripted("B", [1.0], []), 2)
    assert [each.fault is None for each in done] == [False, True, True]
    monkeypatch.setattr("benchmarks.rounds.load", lambda: 9.0)
    assert len(run_rounds(Scripted("A", [1.0], []), Scripted("B", [1.0], []), 2)) == 4
