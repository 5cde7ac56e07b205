"""A run over preference pairs that is killed, at the worst of times, ends with the bytes of an undisturbed one."""

import json
from pathlib import Path

import pytest

from tests.support.killed import kill_in
from tests.support.pair_program import run, trace_of
from tests.support.reward_training import folder_bytes, save_start

PROGRAM = "tests.support.pair_program"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        # 10 steps; 2 micro-batches to a step
        ("dpo", {"batch_size": 2, "gradient_accumulation_steps": 2}),
        # 8 steps with dropout in every layer that trains; the order of the second epoch is another one
        ("reward", {"gradient_accumulation_steps": 2, "use_lora": True, "lora_rank": 2, "lora_dropout": 0.3}),
    ],
)
def test_killed_in_an_update_and_in_a_save(tmp_path: Path, trainer: str, settings: dict):
    save_start(tmp_path / "start")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(trainer, whole, **settings)
    # the first process saves step 3 and dies in its fifth step; the second goes on from there and dies saving step 6
    kill_in("update 5", PROGRAM, trainer, killed, json.dumps(settings))
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == ["step-3", "step-4"]
    kill_in("save 6", PROGRAM, trainer, killed, json.dumps(settings))
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == [".step-6.tmp", "step-3", "step-4"]
    assert not (killed / "model").exists()
    run(trainer, killed, **settings)
    assert folder_bytes(killed / "model") == folder_bytes(whole / "model")
    assert trace_of(killed) == trace_of(whole)
    assert len(trace_of(whole)) > 6
