"""Interruptions change nothing in reward training: same weights, same numbers, bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcore.checkpoint import load_checkpoint
from rlcore.errors import CheckpointError
from rlcore.pair_training import run
from rlcore.reward.training import train
from tests.support.reward_training import Stop, Trace, folder_bytes, pairs, plant_nan, save_start, settings, stop_at


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small causal language model."""
    return save_start(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory) -> tuple[dict[str, bytes], Trace]:
    """Folder and trace of 14 steps with dropout and validation, saved every 3, never stopped."""
    folder, trace = tmp_path_factory.mktemp("whole"), Trace()
    result = train(
        settings(start), pairs("validation"), folder / "model", resume_dir=folder / "state", on_metrics=trace
    )
    assert result.model_dir == folder / "model"
    return folder_bytes(folder / "model"), trace


@pytest.mark.parametrize("step", [2, 6, 7, 10, 14])
def test_a_resumed_run_is_the_uninterrupted_one(start, tmp_path, uninterrupted, step):
    # stopped before the first checkpoint, at one, at the end of an epoch, between two, at the last step
    trace = Trace()
    with pytest.raises(Stop):
        train(
            settings(start),
            pairs("validation"),
            tmp_path / "model",
            resume_dir=tmp_path / "state",
            on_metrics=stop_at(trace, step),
        )
    assert not (tmp_path / "model").exists()
    torch.manual_seed(step)
    train(settings(start), pairs("validation"), tmp_path / "model", resume_dir=tmp_path / "state", on_metrics=trace)
    whole_bytes, whole_trace = uninterrupted
    assert folder_bytes(tmp_path / "model") == whole_bytes
    first_report = min(at for at in trace.values if "progress/total_steps" in trace.values[at])
    assert first_report == 0
    reported = {at: {k: v for k, v in m.items() if k != "progress/total_steps"} for at, m in trace.values.items()}
    assert {at: m for at, m in reported.items() if m} == {at: m for at, m in whole_trace.values.items() if at}


def test_adapters_resume_bit_for_bit(start, tmp_path):
    config = settings(start, use_lora=True, lora_rank=2, lora_dropout=0.3, center_rewards_coef=0.1)
    train(config, pairs(), tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, pairs(), tmp_path / "model", resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 8))
    assert "model.safetensors" in {path.name for path in (tmp_path / "state" / "step-6").iterdir()}
    train(config, pairs(), tmp_path / "model", resume_dir=tmp_path / "state")
    assert folder_bytes(tmp_path / "model") == folder_bytes(tmp_path / "whole")


def test_a_damaged_last_checkpoint_costs_steps_and_no_bits(start, tmp_path, uninterrupted):
    arguments = (settings(start), pairs("validation"), tmp_path / "model")
    with pytest.raises(Stop):
        train(*arguments, resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 10))
    state = tmp_path / "state" / "step-9" / "state.json"
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    train(*arguments, resume_dir=tmp_path / "state")
    assert folder_bytes(tmp_path / "model") == uninterrupted[0]


@pytest.mark.parametrize("change", [{"learning_rate": 0.02}, {"seed": 1}, {"batch_size": 7}])
def test_a_checkpoint_of_another_run_is_refused(start, tmp_path, change):
    with pytest.raises(Stop):
        train(settings(start), pairs(), tmp_path / "m", resume_dir=tmp_path / "s", on_metrics=stop_at(Trace(), 4))
    with pytest.raises(CheckpointError, match="other settings or data"):
        train(settings(start, **change), pairs(), tmp_path / "m", resume_dir=tmp_path / "s")
    other = pairs()
    other["train"] = other["train"].select(range(13, -1, -1))
    with pytest.raises(CheckpointError, match="other settings or data"):
        train(settings(start), other, tmp_path / "m", resume_dir=tmp_path / "s")


def test_a_checkpoint_from_another_start_is_refused(tmp_path):
    start = save_start(tmp_path / "start")
    with pytest.raises(Stop):
        train(settings(start), pairs(), tmp_path / "m", resume_dir=tmp_path / "s", on_metrics=stop_at(Trace(), 4))
    # the folder's name stays and another model moves in
    weights = {name: 1.1 * weight for name, weight in load_file(start / "model.safetensors").items()}
    save_file(weights, start / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"other settings or data.*start: found"):
        train(settings(start), pairs(), tmp_path / "m", resume_dir=tmp_path / "s")


def test_reporting_and_saving_may_change_on_resume(start, tmp_path, uninterrupted):
    arguments = (pairs("validation"), tmp_path / "model")
    with pytest.raises(Stop):
        train(settings(start), *arguments, resume_dir=tmp_path / "s", on_metrics=stop_at(Trace(), 8))
    train(settings(start, save_steps=5, logging_steps=3), *arguments, resume_dir=tmp_path / "s")
    expected = dict(uninterrupted[0])
    found = folder_bytes(tmp_path / "model")
    expected.pop("reward_config.json"), found.pop("reward_config.json")
    assert found == expected


def test_the_best_epoch_is_remembered_over_an_interruption(start, tmp_path, monkeypatch):
    losses = iter([0.2, 0.4])
    monkeypatch.setattr(run, "evaluate_pairs", lambda *_: {"validation/loss": next(losses)})
    arguments = (settings(start), pairs("validation"), tmp_path / "model")
    with pytest.raises(Stop):
        train(*arguments, resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 10))
    result = train(*arguments, resume_dir=tmp_path / "state")
    # the first epoch ends with step 7
    assert (result.best_step, result.best_metrics["validation/loss"]) == (7, 0.2)
    best = load_checkpoint(tmp_path / "state" / "step-7").tensors["model"]["head.weight"]
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], best)


def test_skipped_steps_are_remembered_over_an_interruption(start, tmp_path, monkeypatch):
    plant_nan(monkeypatch, 1)
    trace = Trace()
    arguments = (settings(start), pairs(), tmp_path / "model")
    with pytest.raises(Stop):
        train(*arguments, resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 6))
    train(*arguments, resume_dir=tmp_path / "state", on_metrics=trace)
    assert trace.values[14]["optim/non_finite_steps"] == 1.0


def test_two_runs_are_equal_and_the_config_lies_beside_the_model(start, tmp_path, uninterrupted):
    torch.manual_seed(99)
    train(settings(start), pairs("validation"), tmp_path / "model")
    assert folder_bytes(tmp_path / "model") == uninterrupted[0]
    assert json.loads(uninterrupted[0]["reward_config.json"])["learning_rate"] == 0.01
