"""Each trainer for 20 steps: from the command line, from Python, stopped by a signal and taken up; equal weights."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlcore.cli import progress
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from tests.support import stand_ins
from tests.support.llm import PAIRS, llm, write_rows

# 16 rows: 2 optimiser steps or iterations an epoch.
EPOCHS, STEPS, STOP = 10, 20, 7
WIDE = {"batch_size": 8, "gradient_accumulation": 1}
SETTINGS = {
    "sft": {"text_column": "chosen", **WIDE},
    "reward": WIDE,
    "dpo": WIDE,
    "orpo": WIDE,
    "ppo": {"rl_reward_fn": "default", "rl_chunk_size": 8, "rl_max_new_tokens": 6, "batch_size": 8},
    "grpo": {"rl_reward_fn": "default", "rl_max_new_tokens": 6, "batch_size": 16, "gradient_accumulation": 2},
}
OWN = ("reward", "dpo", "grpo")
"""Trainers that there are in two implementations."""

CASES = [(trainer, None) for trainer in SETTINGS] + [(trainer, "own") for trainer in OWN]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return stand_ins.gemma3(tmp_path_factory.mktemp("models") / "gemma3")


def settings_of(trainer: str, implementation: str | None, model: Path) -> dict[str, object]:
    settings = {"trainer": trainer, "model": str(model), "data_path": "rows.jsonl", "epochs": EPOCHS, "lr": 1e-3}
    settings |= {} if implementation is None else {"implementation": implementation}
    settings |= {"model_ref": str(model)} if trainer == "ppo" else {}
    # Nothing is saved but what a stop saves.
    settings |= {"save_strategy": "steps", "save_steps": 1000}
    return settings | ({} if trainer in ("ppo", "grpo") else {"logging_steps": 1}) | SETTINGS[trainer]


def flags(settings: dict[str, object]) -> list[str]:
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def stopped_at(step: int, number: signal.Signals):
    """A progress that sends this process a signal when it is told of a step."""

    @contextmanager
    def shown_progress(title):
        def show(told, metrics):
            if told == step:
                os.kill(os.getpid(), number)

        yield show

    return shown_progress


@pytest.mark.parametrize(("trainer", "implementation"), CASES)
def test_command_line_python_and_a_stopped_run_that_goes_on_end_with_equal_weights(
    model, tmp_path, monkeypatch, capsys, trainer, implementation
):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", PAIRS)
    settings = settings_of(trainer, implementation, model)

    assert llm(*flags(settings), "--project-name", "whole") == 0
    assert f"Wrote the {'reward model' if trainer == 'reward' else 'model'} of step {STEPS} to whole" in (
        capsys.readouterr().out
    )

    AutoTrainProject(params=LLMTrainingParams(**settings, project_name="python"), process=True).create()

    with monkeypatch.context() as patch:
        patch.setattr(progress, "shown_progress", stopped_at(STOP, signal.SIGTERM))
        assert llm(*flags(settings), "--project-name", "stopped") == 143
    assert not Path("stopped").exists()
    assert "with --resume-from-checkpoint auto goes on" in capsys.readouterr().err
    kept = {path.name for path in Path("stopped-checkpoints").iterdir()}
    assert len(kept & {f"step-{STOP}", f"checkpoint-{STOP}"}) == 1

    assert llm(*flags(settings), "--project-name", "stopped") == 2  # nobody said to go on
    assert "found the checkpoints of an interrupted run" in capsys.readouterr().err
    assert llm(*flags(settings), "--project-name", "stopped", "--resume-from-checkpoint", "auto") == 0

    expected = weights("whole")
    for folder in ("python", "stopped"):
        found = weights(folder)
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == [], folder
    if trainer != "reward":
        start = weights(str(model))
        assert any(not torch.equal(start[name], expected[name]) for name in start)


def test_ctrl_c_is_130_and_with_no_checkpoints_nothing_is_kept(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", PAIRS)
    monkeypatch.setattr(progress, "shown_progress", stopped_at(STOP, signal.SIGINT))
    settings = settings_of("dpo", "own", model) | {"save_strategy": "no"}
    del settings["save_steps"]
    assert llm(*flags(settings)) == 130
    assert "Nothing is kept" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
