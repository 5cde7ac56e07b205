"""The pipe between runner and worker, and what a worker says of a fault."""

import sys
import types
from pathlib import Path

import pytest

from benchmarks import process
from benchmarks.protocol import Measurement, Work, line, message
from benchmarks.worker import Memory, Session, answer

SIZE = 64 * 2**20


class Toy:
    """An arm that fills memory and counts."""

    def __init__(self, count: int):
        self.count = count

    def unit(self) -> Work:
        block = bytearray(SIZE)
        block[::4096] = b"x" * len(block[::4096])
        return Work(self.count, steps=2, loss=0.5, parts={"tokenise_s": 0.1})

    def facts(self, other: dict | None) -> dict:
        raise ZeroDivisionError("no facts\nat all")


@pytest.fixture
def toy_arm(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("benchmarks.arms.toy")
    module.Toy = Toy
    monkeypatch.setitem(sys.modules, "benchmarks.arms.toy", module)


def test_a_measurement_survives_the_pipe():
    measured = Measurement(Work(7, steps=2, loss=0.5, parts={"a": 1.0}), cpu_s=3.5, wall_s=4.0, peak_bytes=9)
    assert Measurement.from_values(message(line(measured.as_values()))) == measured


def test_what_is_no_message_is_refused():
    with pytest.raises(ValueError, match=r"expected a JSON object\. The arm printed over the pipe"):
        message(b"[1]\n")


def test_a_worker_measures_a_unit(toy_arm):
    session = Session()
    assert answer(session, {"do": "build", "arm": "toy:Toy", "settings": {"count": 7}})["ok"]
    answered = answer(session, {"do": "unit"})
    assert answered.pop("ok")
    measured = Measurement.from_values(answered)
    assert measured.work == Work(7, steps=2, loss=0.5, parts={"tokenise_s": 0.1})
    assert measured.cpu_s > 0
    assert measured.wall_s > 0
    assert measured.unit_peak_bytes > 0.8 * SIZE
    assert measured.peak_bytes > 0.8 * SIZE


def test_a_fault_of_an_arm_is_one_line(toy_arm, capsys: pytest.CaptureFixture[str]):
    session = Session()
    answer(session, {"do": "build", "arm": "toy:Toy", "settings": {"count": 7}})
    assert answer(session, {"do": "facts", "other": None}) == {"ok": False, "error": "ZeroDivisionError: no facts"}
    assert "Traceback" in capsys.readouterr().err


def test_the_peak_forgets_what_was_before():
    memory = Memory()
    block = bytearray(SIZE)
    block[::4096] = b"x" * len(block[::4096])
    del block
    before = memory.begin()
    assert memory.peak() - before < SIZE / 2
    assert memory.highest() - memory.baseline > 0.8 * SIZE


def test_a_worker_process_says_why_it_failed():
    with (
        process.Worker("own", "nowhere:Arm", {}) as worker,
        pytest.raises(process.ArmFailed, match=r"nowhere:Arm: ModuleNotFoundError: .*nowhere.* See .*own-nowhere"),
    ):
        worker.build()


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(process, "PEERS", tmp_path)
    with pytest.raises(process.ArmFailed, match=r"trl-1\.12: not installed\. Run benchmarks/peers\.sh"):
        process.Worker("trl-1.12", "trl_ppo:PPO", {})
