"""Checkpoints of PPO: a resumed run is the uninterrupted one, and another run's checkpoint is refused."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import datasets
import pytest
import torch
from torch import Tensor

from rlcore.checkpoint import load_checkpoint, save_checkpoint
from rlcore.configs import LoraConfig
from rlcore.errors import CheckpointError
from rlcore.models import load_causal_lm, save_causal_lm
from rlcore.ppo import train
from rlcore.results import TrainResult
from rlcore.scratch import build_model
from tests.support.ppo import (
    PROMPTS,
    SHAPE,
    iterations,
    running,
    same,
    share_of_e,
    tiny_config,
    tiny_trainer,
    untimed,
)
from tests.support.reward_training import folder_bytes
from tests.support.tiny import tiny_tokenizer


def all_weights(trainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, lora):
    def run(total: int, folder: Path):
        with running(tiny_config(lora=lora)) as (trainer, reported):
            history = trainer.train(PROMPTS, total, validation_prompts=PROMPTS[:4], resume_dir=folder)
            return history, all_weights(trainer), trainer.kl_controller.value, iterations(reported)

    whole_history, whole, whole_coef, whole_reports = run(4, tmp_path / "whole")
    run(2, tmp_path / "parts")
    history, resumed, coef, reports = run(4, tmp_path / "parts")
    assert same(whole, resumed)
    assert coef == whole_coef != 0.05
    assert [untimed(metrics) for metrics in reports] == [untimed(metrics) for metrics in whole_reports[2:]]
    evaluations = {name: len(values) for name, values in history.items() if name.startswith("eval_")}
    assert evaluations == {"eval_rewards": 1, "eval_objective": 1}
    assert all(values == whole_history[name][-len(values) :] for name, values in history.items())


def test_a_checkpoint_by_hand_holds_everything(tmp_path: Path):
    with running(tiny_config()) as (trainer, reported):
        trainer.train(PROMPTS, 3)
        # 3 iterations at far less KL than the target of 2 nats: 0.05 falls by 3.2 % each
        coef = trainer.kl_controller.value
        assert coef == pytest.approx(0.05 * 0.968**3)
        sequences = trainer.collect(trainer.encode(PROMPTS), range(4), ("rollout", 9)).sequences
        values = trainer.model.response_outputs(sequences, 1.0).values
        path = trainer.save_checkpoint(tmp_path)
        expected = trainer.train(PROMPTS, 4)
    assert path == tmp_path / "step-3"
    for place in (path, tmp_path):
        with running(tiny_config()) as (trainer, _):
            trainer.load_checkpoint(place)
            assert (trainer.iteration, trainer.kl_controller.value) == (3, coef)
            assert torch.equal(trainer.model.response_outputs(sequences, 1.0).values, values)
            assert trainer.train(PROMPTS, 4) == expected
    assert values.abs().max() > 0


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("weights", "value_head.output.weight", r"1 weights do not fit.*value_head.output.weight: found None"),
        ("weights", None, "found no weights"),
        ("optimizer", None, "found no optimizer"),
    ],
)
def test_a_checkpoint_without_critic_weights_or_moments_is_refused(tmp_path: Path, group, name, message):
    with running(tiny_config()) as (trainer, _):
        saved = load_checkpoint(trainer.save_checkpoint(tmp_path / "whole"))
        if name is None:
            del saved.tensors[group]
        else:
            del saved.tensors[group][name]
        save_checkpoint(tmp_path / "part", 0, saved.tensors, saved.state)
        before = all_weights(trainer)
        with pytest.raises(CheckpointError, match=message):
            trainer.load_checkpoint(tmp_path / "part")
        assert same(before, all_weights(trainer))


def test_a_folder_without_a_checkpoint_is_refused_by_hand_and_begun_by_a_run(tmp_path: Path):
    with running(tiny_config(num_iterations=1)) as (trainer, _):
        with pytest.raises(CheckpointError, match="found no checkpoint"):
            trainer.load_checkpoint(tmp_path)
        trainer.train(PROMPTS, resume_dir=tmp_path)
    assert json.loads((tmp_path / "step-1" / "state.json").read_text())["iteration"] == 1


def test_adapters_are_saved_without_the_base_that_others_keep(tmp_path: Path):
    with running(tiny_config(lora=LoraConfig(rank=2))) as (trainer, _):
        names = load_checkpoint(trainer.save_checkpoint(tmp_path)).tensors["weights"]
    assert names
    assert all("lora_" in name or name.startswith("value_head.") for name in names)


@pytest.mark.parametrize(
    ("changes", "prompts", "validation", "named"),
    [
        ({"learning_rate": 1e-3}, PROMPTS, PROMPTS[:4], "config.learning_rate: found 0.003, expected 0.001"),
        ({"seed": 1}, PROMPTS, PROMPTS[:4], "config.seed: found 0, expected 1"),
        ({}, PROMPTS[:-1], PROMPTS[:4], "prompts: found"),
        ({}, [{"prompt": prompt, "row": 1} for prompt in PROMPTS], PROMPTS[:4], "prompts: found"),
        ({}, PROMPTS, PROMPTS[:3], "validation: found"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changes, prompts, validation, named):
    with running(tiny_config(num_iterations=1)) as (trainer, _):
        trainer.train(PROMPTS, validation_prompts=PROMPTS[:4], resume_dir=tmp_path)
    before = folder_bytes(tmp_path)
    with (
        running(tiny_config(**{"num_iterations": 1, **changes})) as (other, _),
        pytest.raises(CheckpointError, match=named),
    ):
        other.train(prompts, validation_prompts=validation, resume_dir=tmp_path)
    assert folder_bytes(tmp_path) == before


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_a_checkpoint_of_another_reference_is_refused(tmp_path: Path, lora):
    refused = pytest.raises(CheckpointError, match=r"frozen\.reference: found")
    for seed, outcome in ((1, nullcontext()), (2, refused)):
        reference = build_model(SHAPE, tiny_tokenizer(), seed=seed)
        with running(tiny_config(num_iterations=1, lora=lora), reference_model=reference) as (trainer, _), outcome:
            trainer.train(PROMPTS, resume_dir=tmp_path)


def test_a_checkpoint_of_adapters_on_another_base_is_refused(tmp_path: Path):
    for seed, outcome in ((1, nullcontext()), (2, pytest.raises(CheckpointError, match=r"frozen\.policy: found"))):
        arguments = {
            "model": build_model(SHAPE, tiny_tokenizer(), seed=seed),
            "reference_model": build_model(SHAPE, tiny_tokenizer(), seed=1),
        }
        with running(tiny_config(num_iterations=1, lora=LoraConfig(rank=2)), **arguments) as (trainer, _), outcome:
            trainer.train(PROMPTS, resume_dir=tmp_path)


def test_more_iterations_and_other_saving_go_on_from_the_checkpoint(tmp_path: Path):
    with running(tiny_config(num_iterations=1)) as (first, _):
        first.train(PROMPTS, resume_dir=tmp_path)
    with running(tiny_config(num_iterations=3, save_every=2)) as (longer, _):
        assert len(longer.train(PROMPTS, resume_dir=tmp_path)["rewards"]) == 2
    # every second iteration, and the last one
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3"]


# The common interface of all trainers.


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Folder of the tiny policy."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    save_causal_lm(model, tiny_tokenizer(), tmp_path / "start")
    return tmp_path / "start"


def run_into(folder: Path, start: Path, **arguments) -> tuple[TrainResult, list[int]]:
    """The common interface over the tiny policy; the result, and the iterations that trained."""
    steps: list[int] = []
    rows = datasets.Dataset.from_dict({"prompt": PROMPTS})
    data = datasets.DatasetDict(train=rows, validation=rows.select(range(4)))

    def report(step: int, metrics: dict[str, float]) -> None:
        if "policy/loss" in metrics:
            steps.append(step)

    config = tiny_config(model_name=str(start), num_iterations=2)
    return train(config, data, folder, **{"reward": share_of_e, "on_metrics": report, **arguments}), steps


def test_a_second_run_into_a_folder_trains_again_and_leaves_nothing_beside_the_model(tmp_path: Path, start: Path):
    first, first_steps = run_into(tmp_path / "policy", start)
    weights = (tmp_path / "policy" / "model.safetensors").read_bytes()
    second, second_steps = run_into(tmp_path / "policy", start)
    assert first_steps == second_steps == [1, 2]
    assert (tmp_path / "policy" / "model.safetensors").read_bytes() == weights
    assert (first.best_step, first.best_metrics) == (second.best_step, second.best_metrics)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "start"]


def test_the_best_metrics_are_metrics_and_the_step_is_apart(tmp_path: Path, start: Path):
    result, _ = run_into(tmp_path / "policy", start)
    assert result.best_step in {0, 2}
    assert all(name.startswith("validation/") for name in result.best_metrics)
    assert result.final_metrics["reward/score_mean"] >= 0


def test_a_run_that_is_asked_for_again_publishes_and_tells_the_same(tmp_path: Path, start: Path):
    first, _ = run_into(tmp_path / "policy", start, resume_dir=tmp_path / "state")
    weights = folder_bytes(tmp_path / "policy")
    shutil.rmtree(tmp_path / "policy")
    second, steps = run_into(tmp_path / "policy", start, resume_dir=tmp_path / "state")
    assert steps == []
    assert folder_bytes(tmp_path / "policy") == weights
    assert (second.best_step, second.best_metrics) == (first.best_step, first.best_metrics)
    assert untimed(second.final_metrics) == untimed(first.final_metrics)
    assert "policy/loss" in second.final_metrics


def test_better_weights_that_a_kill_took_are_not_published(tmp_path: Path, start: Path):
    def score(first: float, later: float):
        asked: list[int] = []

        def judge(prompts, responses):
            asked.append(len(responses))
            return [first if len(asked) == 1 else later] * len(responses)

        return judge

    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    # the evaluation before training gives 0. That of step 2 gives 9 and comes to no checkpoint; the judge of the second
    # attempt gives less than 0, so step 0 is the best that the run knows
    with pytest.raises(KeyboardInterrupt):
        run_into(tmp_path / "policy", start, reward=score(0.0, 9.0), resume_dir=tmp_path / "state", on_metrics=stop)
    result, _ = run_into(tmp_path / "policy", start, reward=score(-1.0, -1.0), resume_dir=tmp_path / "state")
    assert result.best_step == 0
    assert result.best_metrics["validation/score_mean"] == 0.0
    published, expected = (load_causal_lm(folder).state_dict() for folder in (tmp_path / "policy", start))
    assert same(published, expected)


def test_a_folder_may_be_the_reference(tmp_path: Path, start: Path):
    own, _ = run_into(tmp_path / "own", start)
    named, _ = run_into(tmp_path / "named", start, reference=start)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("own", "named")]
    assert weights[0] == weights[1]
    assert own.best_metrics == named.best_metrics


def test_the_published_model_is_the_policy_with_its_adapters(tmp_path: Path):
    trainer = tiny_trainer(tiny_config(num_iterations=1, lora=LoraConfig(rank=2)))
    trainer.train(PROMPTS)
    trainer.save_model(tmp_path / "policy")
    ids = torch.tensor([[5, 6, 7]])
    expected = trainer.model.base_model(ids).logits
    trainer.close()
    torch.testing.assert_close(load_causal_lm(tmp_path / "policy")(ids).logits, expected, rtol=1e-4, atol=1e-5)
