"""Training a reward model: the gradient is the big batch's, the best weights are published, bad steps are skipped."""

import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2Model

from rlcore.checkpoint import load_checkpoint
from rlcore.errors import ConfigError, DataError, TrainingDiverged
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.pair_training import run
from rlcore.reward import RewardModel, RewardModelSource, objective
from rlcore.reward.training import train
from tests.support.reward_training import BAD, COLUMNS, GOOD, PROMPTS, Trace, pairs, plant_nan, save_start, settings


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small causal language model."""
    return save_start(tmp_path_factory.mktemp("start"))


def test_a_step_moves_by_the_scheduled_learning_rate(start, tmp_path):
    # AdamW's first step moves every weight by the learning rate: a quarter of 0.01 in the first of 4 warm-up steps
    config = settings(start, batch_size=14, num_epochs=1, warmup_steps=4)
    train(config, pairs(), tmp_path / "model")
    moved = load_file(tmp_path / "model" / "reward_head.safetensors")["weight"] - RewardModel(config).head.weight
    assert moved.abs().max().item() == pytest.approx(0.0025, rel=1e-3)


def test_all_modules_train_in_training_and_none_in_validation(start, tmp_path, monkeypatch):
    modes: list[set[bool]] = []
    rewards = objective.RewardObjective._rewards

    def watched(pairs_of_run: object, model: RewardModel, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        modes.append({module.training for module in model.modules()})
        return rewards(pairs_of_run, model, rows)

    monkeypatch.setattr(objective.RewardObjective, "_rewards", watched)
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


def test_a_separable_toy_is_learnt_to_the_last_pair(start, tmp_path):
    trace = Trace()
    config = settings(start, num_epochs=8, batch_size=7, dropout_prob=0.0)
    result = train(config, pairs("validation"), tmp_path / "model", on_metrics=trace)
    assert result.best_metrics["validation/accuracy"] == 1.0
    assert result.best_metrics["validation/loss"] < 0.1
    scores = RewardModelSource(result.model_dir)(PROMPTS * 2, [GOOD] * 14 + [BAD] * 14)
    assert min(scores[:14]) > max(scores[14:])
    # all pairs are right, so in each bin confidence falls short of 1: the error is 1 less the mean confidence
    confidence = [1 / (1 + math.exp(bad - good)) for good, bad in zip(scores[:14], scores[14:], strict=True)]
    expected = 1 - sum(confidence) / 14
    assert result.best_metrics["validation/calibration_error"] == pytest.approx(expected, abs=1e-5)
    # nothing is left beside the model, although no folder for checkpoints was given
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_best_epoch_on_the_validation_pairs_is_published(start, tmp_path, monkeypatch):
    losses = iter([0.5, 0.2, 0.4, 0.3])
    weights: list[torch.Tensor] = []

    def planted(client: AsyncTrainingClient, *_: object) -> dict[str, float]:
        weights.append(client.model.head.weight.detach().clone())
        return {"validation/loss": next(losses)}

    monkeypatch.setattr(run, "evaluate_pairs", planted)
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
    assert sorted(path.name for path in state.glob("step-*")) == ["step-14", "step-27", "step-28"]


def test_training_pairs_report_loss_accuracy_margin_and_calibration(start, tmp_path):
    trace = Trace()
    frozen = settings(start, learning_rate=1e-30, dropout_prob=0.0, num_epochs=1, batch_size=14, reference_samples=0)
    train(frozen, pairs("validation"), tmp_path / "model", on_metrics=trace)
    # one step over all pairs, at weights that stay: training and validation measure the same
    names = ("loss", "accuracy", "margin_mean", "calibration_error")
    assert set(trace.values[1]) == {
        *(f"{topic}/{name}" for topic in ("reward_model", "validation") for name in names),
        *(f"optim/{name}" for name in ("grad_norm", "learning_rate", "non_finite_steps")),
    }
    for name in names:
        measured = trace.values[1][f"reward_model/{name}"]
        assert measured == pytest.approx(trace.values[1][f"validation/{name}"], abs=1e-6), name
    source = RewardModelSource(tmp_path / "model")
    good, bad = source(PROMPTS, [GOOD] * 14), source(PROMPTS, [BAD] * 14)
    margins = [first - second for first, second in zip(good, bad, strict=True)]
    assert trace.values[1]["reward_model/margin_mean"] == pytest.approx(sum(margins) / 14, abs=1e-6)
    # margins of an untrained model are so small that all pairs are in the first bin, 0.5 to 0.55
    assert max(map(abs, margins)) < 0.2
    confidence = sum(1 / (1 + math.exp(-abs(margin))) for margin in margins) / 14
    right = sum(margin > 0 for margin in margins) / 14
    assert trace.values[1]["reward_model/calibration_error"] == pytest.approx(abs(confidence - right), abs=1e-5)


def test_nothing_is_trained_in_no_epochs(start, tmp_path):
    trace = Trace()
    result = train(settings(start, num_epochs=0), pairs(), tmp_path / "model", on_metrics=trace)
    assert (result.best_step, trace.values) == (0, {0: {"progress/total_steps": 0.0}})
    untrained = RewardModel(settings(start))
    assert torch.equal(load_file(tmp_path / "model" / "reward_head.safetensors")["weight"], untrained.head.weight)


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
