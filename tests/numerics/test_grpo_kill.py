"""A run of episodes with tools that is killed ends with the bytes of an undisturbed one; two processes are one."""

import json
from pathlib import Path

import pytest

from rlcore.grpo import GRPOTrainer
from tests.support.grpo_program import run
from tests.support.killed import kill_in
from tests.support.launch import run_in_processes
from tests.support.ppo_program import trace_of
from tests.support.reward_training import folder_bytes

PROGRAM = "tests.support.grpo_program"


@pytest.mark.slow
def test_killed_in_an_update_and_in_a_save(tmp_path: Path):
    # 4 optimiser steps an iteration: step 18 is in the fifth; the second process goes on from 3 and dies saving 6. The
    # policy is at its best before it learns
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = run(whole)["history"]
    kill_in("update 18", PROGRAM, killed)
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == ["step-0", "step-3"]
    kill_in("save 6", PROGRAM, killed)
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == [".step-6.tmp", "step-0", "step-3"]
    resumed = run(killed)["history"]
    for part in ("model", "state"):
        assert folder_bytes(killed / part) == folder_bytes(whole / part), part
    assert trace_of(killed) == trace_of(whole)
    assert len(trace_of(whole)) == 7
    for name in GRPOTrainer.HISTORY:
        assert resumed[name] == undisturbed[name][3:]


@pytest.mark.long
def test_two_processes_are_one(tmp_path: Path):
    # 15 responses in steps of 4, 4, 4 and 3, so that groups and steps are split unevenly
    settings = {"batch_size": 15, "num_generations": 5, "mini_batch_size": 4, "num_iterations": 2}
    settings |= {"advantage_scaling": "batch", "loss_normalization": "sequence", "kl_penalty_coef": 0.5}
    one, two = tmp_path / "one", tmp_path / "two"
    alone = run(one, **settings)
    written = run_in_processes(PROGRAM, 2, [two, json.dumps(settings)])
    first, second = (json.loads(text.splitlines()[-1]) for text in written)
    expected, found = trace_of(one), trace_of(two)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-5, abs=1e-5), step
    assert len((two / "trace.jsonl").read_text().splitlines()) == len((one / "trace.jsonl").read_text().splitlines())
    # the replicas are equal to the last bit, and the first process alone reports
    assert (first["history"], first["weights"]) == (second["history"], second["weights"])
    assert second["samples"] == []
    assert [row["response"] for _, rows in first["samples"] for row in rows] == [
        row["response"] for _, rows in alone["samples"] for row in rows
    ]
