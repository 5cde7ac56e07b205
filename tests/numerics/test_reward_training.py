"""Training a reward model: the gradient is the big batch's, a resumed run is the uninterrupted one, bit for bit."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2Model, LlamaForCausalLM

from rlcore.checkpoint import load_checkpoint
from rlcore.configs import RewardModelConfig, ScratchModelConfig
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from rlcore.reward import RewardModel, RewardModelSource, training
from rlcore.reward.training import train
from rlcore.schedule import learning_rate_share
from rlcore.scratch import build_model, train_tokenizer

PROMPTS = [f"Say {number}." for number in range(14)]
GOOD, BAD = "Gladly.", "No."
COLUMNS = {"prompt": PROMPTS, "chosen": [GOOD] * 14, "rejected": [BAD] * 14}


class Trace:
    """Keeps what a trainer reports; the last value of a step and name counts."""

    def __init__(self):
        self.values: dict[int, dict[str, float]] = {}

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(metrics)


class Stop(Exception):
    """Stands for whatever ends a run in the middle."""


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """Folder of a small causal language model."""
    folder = tmp_path_factory.mktemp("start")
    tokenizer = train_tokenizer([f"{prompt} {GOOD} {BAD}" for prompt in PROMPTS], 280)
    shape = ScratchModelConfig(vocab_size=280, hidden_size=16, num_layers=2, intermediate_size=16, max_positions=64)
    build_model(shape, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(start: Path, **changes: Any) -> RewardModelConfig:
    values: dict[str, Any] = {
        "model_name": str(start),
        "batch_size": 2,
        "num_epochs": 2,
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "dropout_prob": 0.2,
        "max_length": 32,
        "save_steps": 3,
        "logging_steps": 2,
    }
    return RewardModelConfig(**values | changes)


def pairs(*splits: str) -> datasets.DatasetDict:
    return datasets.DatasetDict({split: datasets.Dataset.from_dict(COLUMNS) for split in ("train", *splits)})


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_learning_rate_warms_up_and_falls_to_zero():
    # 2 of 6 steps warm up; then (1 + cos(pi * n / 4)) / 2 for n = 0..3
    shares = [learning_rate_share(step, 2, 6) for step in range(6)]
    assert shares == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert learning_rate_share(6, 2, 6) == 0.0
    assert [learning_rate_share(step, 4, 2) for step in range(2)] == [0.25, 0.5]


def test_a_step_moves_by_the_scheduled_learning_rate(start, tmp_path):
    # AdamW's first step moves every weight by the learning rate: a quarter of 0.01 in the first of 4 warm-up steps
    config = settings(start, batch_size=14, num_epochs=1, warmup_steps=4)
    train(config, pairs(), tmp_path / "model")
    moved = load_file(tmp_path / "model" / "reward_head.safetensors")["weight"] - RewardModel(config).head.weight
    assert moved.abs().max().item() == pytest.approx(0.0025, rel=1e-3)


def test_all_modules_train_in_training_and_none_in_validation(start, tmp_path, monkeypatch):
    modes: list[set[bool]] = []
    rewards = training._rewards

    def watched(model: RewardModel, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        modes.append({module.training for module in model.modules()})
        return rewards(model, *rest)

    monkeypatch.setattr(training, "_rewards", watched)
    train(settings(start), pairs("validation"), tmp_path / "model")
    # 7 batches of training and 7 of validation in each of 2 epochs
    assert modes == ([{True}] * 7 + [{False}] * 7) * 2


def gradient_norms(start: Path, tmp_path: Path, **changes: Any) -> Trace:
    """Every optimiser step's metrics, at weights that do not move and without dropout."""
    trace = Trace()
    frozen = {"learning_rate": 1e-30, "dropout_prob": 0.0, "logging_steps": 1, "max_grad_norm": 1e9, "num_epochs": 1}
    train(settings(start, **frozen | changes), pairs(), tmp_path / "model", on_metrics=trace)
    return trace


def test_the_rest_of_an_epoch_makes_a_step_of_its_own(start, tmp_path):
    # 7 batches of 2 pairs, 3 to a step: steps over 6, 6 and 2 pairs. The last gradient is that of its 2 pairs alone.
    accumulated = gradient_norms(start, tmp_path, gradient_accumulation_steps=3)
    single = gradient_norms(start, tmp_path)
    assert accumulated.values[0] == {"progress/total_steps": 3.0}
    assert single.values[0] == {"progress/total_steps": 7.0}
    for name in ("optim/grad_norm", "reward_model/loss"):
        assert accumulated.values[3][name] == pytest.approx(single.values[7][name], rel=1e-5)


def test_accumulation_longer_than_an_epoch_still_steps(start, tmp_path):
    assert gradient_norms(start, tmp_path, gradient_accumulation_steps=50).values[0] == {"progress/total_steps": 1.0}


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 14), (2, 7), (4, 4)])
def test_micro_batches_give_the_gradient_of_the_big_batch(start, tmp_path, batch_size, accumulation):
    # the last case has batches of 4, 4, 4 and 2 pairs
    center = {"center_rewards_coef": 0.3}
    whole = gradient_norms(start, tmp_path, batch_size=14, **center).values[1]
    parts = gradient_norms(
        start, tmp_path, batch_size=batch_size, gradient_accumulation_steps=accumulation, **center
    ).values[1]
    assert parts == pytest.approx(whole, rel=1e-5)


def test_the_gradient_is_that_of_finite_differences(start):
    # a body that stays in float64 throughout, unlike those whose norms compute in float32
    torch.manual_seed(0)
    body = GPT2Model(GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=8))
    model = RewardModel(settings(start), body).double().eval()
    ids = torch.tensor([[7, 9, 30, 12], [7, 9, 40, 41]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])

    def loss() -> torch.Tensor:
        return model.compute_preference_loss(ids[:1], mask[:1], ids[1:], mask[1:], margin=0.5)

    @torch.no_grad()
    def loss_at(weight: torch.Tensor, index: tuple[int, ...], shift: float) -> float:
        weight[index] += shift
        value = loss().item()
        weight[index] -= shift
        return value

    loss().backward()
    # one weight of the head, of the attention, of a token's embedding
    for name, index in (
        ("head.weight", (0, 3)),
        ("body.h.0.attn.c_attn.weight", (1, 2)),
        ("body.wte.weight", (41, 5)),
    ):
        weight = model.get_parameter(name)
        difference = (loss_at(weight, index, 1e-6) - loss_at(weight, index, -1e-6)) / 2e-6
        # rounding errs by 1e-16 / 1e-6, the third derivative by 1e-12 of it
        assert weight.grad[index].item() == pytest.approx(difference, rel=1e-6, abs=1e-9), name
    # the token in the padded place has no part in the loss
    assert model.body.wte.weight.grad[12].abs().max() == 0


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory) -> tuple[dict[str, bytes], Trace]:
    """Folder and trace of 14 steps with dropout and validation, saved every 3, never stopped."""
    folder, trace = tmp_path_factory.mktemp("whole"), Trace()
    result = train(
        settings(start), pairs("validation"), folder / "model", resume_dir=folder / "state", on_metrics=trace
    )
    assert result.model_dir == folder / "model"
    return folder_bytes(folder / "model"), trace


def stop_at(trace: Trace, step: int):
    def on_metrics(at: int, metrics: Mapping[str, float]) -> None:
        if at == step:
            raise Stop
        trace(at, metrics)

    return on_metrics


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


CHILD = """
import os, pathlib, signal, sys
import datasets
from rlcore.configs import RewardModelConfig
from rlcore.reward import train

arguments = sys.argv[1:]
config, data, output, state = RewardModelConfig.model_validate_json(arguments[0]), *map(pathlib.Path, arguments[1:])
write_text, texts = pathlib.Path.write_text, []

def die_in_the_second_save(path, *rest, **options):
    texts.append(path)
    if len(texts) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return write_text(path, *rest, **options)

# a save writes state.json and manifest.json; the fourth text is the second manifest, behind all its weights
pathlib.Path.write_text = die_in_the_second_save
train(config, datasets.load_from_disk(data), output, resume_dir=state)
"""


def test_a_run_killed_in_the_middle_of_a_save_resumes_bit_for_bit(start, tmp_path, uninterrupted):
    pairs("validation").save_to_disk(tmp_path / "data")
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            settings(start).model_dump_json(),
            *(str(tmp_path / name) for name in ("data", "model", "state")),
        ],
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.returncode == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [".step-6.tmp", "step-3"]
    trace = Trace()
    train(settings(start), pairs("validation"), tmp_path / "model", resume_dir=tmp_path / "state", on_metrics=trace)
    assert min(trace.values) == 3
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


def test_several_launched_processes_are_refused(start, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="The reward trainer: found WORLD_SIZE=2, expected one process"):
        train(settings(start), pairs(), tmp_path / "m")


def test_reporting_and_saving_may_change_on_resume(start, tmp_path, uninterrupted):
    arguments = (pairs("validation"), tmp_path / "model")
    with pytest.raises(Stop):
        train(settings(start), *arguments, resume_dir=tmp_path / "s", on_metrics=stop_at(Trace(), 8))
    train(settings(start, save_steps=5, logging_steps=3), *arguments, resume_dir=tmp_path / "s")
    expected = dict(uninterrupted[0])
    found = folder_bytes(tmp_path / "model")
    expected.pop("reward_config.json"), found.pop("reward_config.json")
    assert found == expected


def test_a_separable_toy_is_learnt_to_the_last_pair(start, tmp_path):
    trace = Trace()
    config = settings(start, num_epochs=8, batch_size=7, dropout_prob=0.0)
    result = train(config, pairs("validation"), tmp_path / "model", on_metrics=trace)
    assert result.best_metrics["validation/accuracy"] == 1.0
    assert result.best_metrics["validation/loss"] < 0.1
    scores = RewardModelSource(result.model_dir)(PROMPTS * 2, [GOOD] * 14 + [BAD] * 14)
    assert min(scores[:14]) > max(scores[14:])
    # nothing is left beside the model, although no folder for checkpoints was given
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_best_epoch_on_the_validation_pairs_is_published(start, tmp_path, monkeypatch):
    losses = iter([0.5, 0.2, 0.4, 0.3])
    weights: list[torch.Tensor] = []

    def planted(model: RewardModel, *_: object) -> dict[str, float]:
        weights.append(model.head.weight.detach().clone())
        return {"reward_model/loss": next(losses)}

    monkeypatch.setattr(training, "evaluate_pairs", planted)
    state = tmp_path / "state"
    result = train(
        settings(start, num_epochs=4, save_steps=1), pairs("validation"), tmp_path / "model", resume_dir=state
    )
    # 7 steps an epoch: the second one ends with step 14, which outlives 14 later checkpoints
    assert result.best_step == 14
    assert result.best_metrics["validation/loss"] == 0.2
    assert result.final_metrics["validation/loss"] == 0.3
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], weights[1])
    assert not torch.equal(weights[1], weights[3])
    assert sorted(path.name for path in state.iterdir()) == ["step-14", "step-27", "step-28"]


def test_the_best_epoch_is_remembered_over_an_interruption(start, tmp_path, monkeypatch):
    losses = iter([0.2, 0.4])
    monkeypatch.setattr(training, "evaluate_pairs", lambda *_: {"reward_model/loss": next(losses)})
    arguments = (settings(start), pairs("validation"), tmp_path / "model")
    with pytest.raises(Stop):
        train(*arguments, resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 10))
    result = train(*arguments, resume_dir=tmp_path / "state")
    # the first epoch ends with step 7
    assert (result.best_step, result.best_metrics["validation/loss"]) == (7, 0.2)
    best = load_checkpoint(tmp_path / "state" / "step-7").tensors["model"]["head.weight"]
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], best)


def test_nothing_is_trained_in_no_epochs(start, tmp_path):
    trace = Trace()
    result = train(settings(start, num_epochs=0), pairs(), tmp_path / "model", on_metrics=trace)
    assert (result.best_step, trace.values) == (0, {0: {"progress/total_steps": 0.0}})
    untrained = RewardModel(settings(start))
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], untrained.head.weight)


def plant_nan(monkeypatch, *calls: int) -> None:
    """Make the loss of some micro-batches NaN, counted from 0. The trainer asks twice for each: loss and metric."""
    loss, asked = training.bradley_terry_loss, []

    def planted(chosen: torch.Tensor, rejected: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append(1)
        value = loss(chosen, rejected, **options)
        return value * math.nan if (len(asked) - 1) // 2 in calls else value

    monkeypatch.setattr(training, "bradley_terry_loss", planted)


def test_a_step_that_is_not_finite_is_skipped_and_counted(start, tmp_path, monkeypatch):
    # 3 micro-batches to a step; the NaN in the fifth one spoils the second step and no other
    plant_nan(monkeypatch, 4)
    trace = Trace()
    config = settings(start, num_epochs=1, gradient_accumulation_steps=3, logging_steps=1, save_steps=1)
    train(config, pairs(), tmp_path / "model", resume_dir=tmp_path / "state", on_metrics=trace)
    assert [trace.values[step]["optim/non_finite_steps"] for step in (1, 2, 3)] == [0.0, 1.0, 1.0]
    for name in ("reward_model/loss", "optim/grad_norm"):
        assert [name in trace.values[step] for step in (1, 2, 3)] == [True, False, True]
    assert all(math.isfinite(value) for metrics in trace.values.values() for value in metrics.values())
    # two good steps of three: AdamW counted two
    counted = load_checkpoint(tmp_path / "state" / "step-3").tensors["optimizer"]["state.0.step"]
    assert counted.item() == 2.0


def test_skipped_steps_are_remembered_over_an_interruption(start, tmp_path, monkeypatch):
    plant_nan(monkeypatch, 1)
    trace = Trace()
    arguments = (settings(start), pairs(), tmp_path / "model")
    with pytest.raises(Stop):
        train(*arguments, resume_dir=tmp_path / "state", on_metrics=stop_at(Trace(), 6))
    train(*arguments, resume_dir=tmp_path / "state", on_metrics=trace)
    assert trace.values[14]["optim/non_finite_steps"] == 1.0


def test_a_skipped_step_leaves_the_weights_as_they_were(start, tmp_path, monkeypatch):
    plant_nan(monkeypatch, 0)
    config = settings(start, num_epochs=1, batch_size=14)
    train(config, pairs(), tmp_path / "model")
    untrained = RewardModel(config)
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], untrained.head.weight)


def test_training_stops_when_no_step_is_finite_any_more(start, tmp_path, monkeypatch):
    plant_nan(monkeypatch, *range(4, 100))
    arguments = (settings(start, save_steps=1), pairs(), tmp_path / "model")
    with pytest.raises(TrainingDiverged, match="loss=nan"):
        train(*arguments, resume_dir=tmp_path / "state")
    assert not (tmp_path / "model").exists()
    newest = load_checkpoint(tmp_path / "state" / "step-6")
    assert all(torch.isfinite(weight).all() for weight in newest.tensors["model"].values())


def test_rewards_get_mean_0_and_deviation_1_on_the_reference(start, tmp_path):
    rows: list[dict[str, Any]] = []
    config = settings(start, num_epochs=1, reference_samples=20, reference_max_new_tokens=8)
    arguments = (config, pairs(), tmp_path / "model")
    train(*arguments, reference=start, on_samples=lambda _step, samples: rows.extend(samples))
    # 20 samples of 14 prompts: every prompt once, then 6 of them again
    assert sorted(row["prompt"] for row in rows[:14]) == sorted(PROMPTS)
    assert len(rows) == 20
    source = RewardModelSource(tmp_path / "model")
    scores = source([row["prompt"] for row in rows], [row["response"] for row in rows])
    assert scores == pytest.approx([row["score"] for row in rows], abs=1e-5)
    assert torch.tensor(scores).mean().item() == pytest.approx(0.0, abs=1e-5)
    assert torch.tensor(scores).std(unbiased=False).item() == pytest.approx(1.0, abs=1e-5)
    again: list[dict[str, Any]] = []
    train(
        *arguments[:2],
        tmp_path / "again",
        reference=LlamaForCausalLM.from_pretrained(start),
        on_samples=lambda _step, samples: again.extend(samples),
    )
    assert again == rows


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"num_labels": 2}, {}, "num_labels=2"),
        ({"reference_samples": 5}, {}, "found no reference"),
        ({"reference_samples": 1}, {"reference": "x"}, "at least 2"),
        ({}, {"reward": lambda *_: []}, "Found a reward source"),
    ],
)
def test_settings_that_contradict_each_other_stop_before_training(start, tmp_path, changes, options, message):
    with pytest.raises(ConfigError, match=message):
        train(settings(start, **changes), pairs(), tmp_path / "model", **options)


def test_data_of_the_wrong_form_stops_before_training(start, tmp_path):
    without_rejected = datasets.Dataset.from_dict({key: COLUMNS[key] for key in ("prompt", "chosen")})
    cases = {
        "expected train": datasets.DatasetDict(),
        "no column rejected": datasets.DatasetDict(train=without_rejected),
        "0 preference pairs": datasets.DatasetDict(train=datasets.Dataset.from_dict({key: [] for key in COLUMNS})),
    }
    for message, data in cases.items():
        with pytest.raises(DataError, match=message):
            train(settings(start), data, tmp_path / "model")


def test_two_runs_are_equal_and_the_config_lies_beside_the_model(start, tmp_path, uninterrupted):
    torch.manual_seed(99)
    train(settings(start), pairs("validation"), tmp_path / "model")
    assert folder_bytes(tmp_path / "model") == uninterrupted[0]
    assert json.loads(uninterrupted[0]["reward_config.json"])["learning_rate"] == 0.01
