"""A run of PPO that is killed, at the worst of times, ends with the bytes and numbers of an undisturbed one."""

from pathlib import Path

import pytest

from tests.support.killed import kill_in
from tests.support.ppo_program import run, trace_of
from tests.support.reward_training import folder_bytes

PROGRAM = "tests.support.ppo_program"


@pytest.mark.slow
def test_killed_in_an_update_and_in_a_save(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = run(whole)
    # 4 optimiser steps an iteration: the tenth is the second of iteration 3. Then iterations 3 and 4 are done again,
    # and the process dies while it writes the checkpoint of the latter.
    kill_in("update 10", PROGRAM, killed)
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == ["step-1", "step-2"]
    kill_in("save 4", PROGRAM, killed)
    assert sorted(path.name for path in (killed / "state").glob("*step*")) == [".step-4.tmp", "step-2", "step-3"]
    finished = run(killed)
    assert finished["weights"] == expected["weights"]
    # the policy; weights, critic and moments of the last two checkpoints and of the best one
    for part in ("model", "state"):
        assert folder_bytes(killed / part) == folder_bytes(whole / part), part
    assert trace_of(killed) == trace_of(whole)
    assert sorted(trace_of(whole)) == list(range(7))
    assert finished["history"]["rewards"] == expected["history"]["rewards"][3:]
