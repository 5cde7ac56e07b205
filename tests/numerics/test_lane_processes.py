"""Two processes with half the rows each train like one with all of them; a saved state goes on bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import lane_program
from tests.support.launch import run_in_processes

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def told(folder) -> Told:
    """What two processes tell of all parts but the resumed one."""
    parts = ["train_steps", "windows", "out_of_memory", "straight"]
    return [json.loads(text) for text in run_in_processes("tests.support.lane_program", args=[folder, *parts])]


def test_steps_over_ragged_rows_are_those_of_one_process(told):
    alone = lane_program.train_steps("")
    first, second = (each["train_steps"] for each in told)
    assert first == second
    for output, expected in zip(first["outputs"], alone["outputs"], strict=True):
        # float32: gradient norms reach 20
        assert output == pytest.approx(expected, rel=1e-6, abs=1e-6)
    for weight, expected in zip(first["weights"], alone["weights"], strict=True):
        assert weight == pytest.approx(expected, abs=1e-6)


def test_windows_add_sums_and_average_means_whoever_has_the_micro_batches(told):
    first, second = (each["windows"] for each in told)
    for each in (first, second):
        assert each["sums"] == 1 + 2 + 4
        assert each["sums of one"] == 3
        assert each["means"] == (1 + 2 + 4 + 5) / 4
        assert each["half a window"] == ["skipped"]
        assert each["flushed"] == (1 + 3) / 2
        assert each["means of one"] == (1 + 2) / 2
        assert each["non-finite"] == ["non_finite", "skipped"]
        # 0 - 7 - 3 - 3 - 2 - 1.5, and no step for the rest
        assert each["weight"] == -16.5
    assert second["failed"][0] == first["failed"][0] == "RLCoreError"
    assert second["failed"][1].startswith("Micro-batch 0")
    assert first["failed"][1].startswith("In another process: Micro-batch 0")


def test_memory_that_is_missing_in_one_process_halves_the_parts_of_all(told):
    for each in (each["out_of_memory"] for each in told):
        assert each["halved"] == sum(range(8))
        # 4 rows each: the first gets through with all 4, the second does not, so both go on with 2
        assert each["sizes"] == [4, 2, 2]
        assert each["too small"][0] == "DeviceMemoryError"
        assert each["failed"][0] == "DataError"
        assert "row 7 has no tokens" in each["failed"][1]
        assert each["usable"] == 0 + 1 + 2


def assert_continued(whole: dict[str, Any], rest: dict[str, Any]) -> None:
    # 12 losses and 6 steps; 7 losses and 3 steps came before the save
    assert len(whole["steps"]) == 18
    assert rest["steps"] == whole["steps"][10:]
    assert {key: rest[key] for key in ("weights", "sample", "draw")} == {
        key: whole[key] for key in ("weights", "sample", "draw")
    }


def test_a_training_saved_in_the_middle_of_a_window_goes_on_bit_for_bit(tmp_path):
    whole = lane_program.straight(str(tmp_path))
    assert_continued(whole, lane_program.resumed(str(tmp_path)))


def test_two_new_processes_go_on_bit_for_bit_each_with_its_own_random_numbers(told, folder):
    resumed = run_in_processes("tests.support.lane_program", args=[folder, "resumed"])
    for each, text in zip(told, resumed, strict=True):
        assert_continued(each["straight"], json.loads(text)["resumed"])
    assert told[0]["straight"]["weights"] == told[1]["straight"]["weights"]
    assert told[0]["straight"]["draw"] != told[1]["straight"]["draw"]
