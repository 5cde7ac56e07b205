"""Preference training as a whole: it starts at ln 2 and learns; batches, interruptions and caches change nothing."""

import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from rlcore.configs import DPOConfig, LoraConfig, ScratchModelConfig
from rlcore.dpo import DPOTrainer, PreferenceDataset, reference, train, trainer
from rlcore.dpo.loss import response_sums
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from rlcore.models import load_causal_lm
from rlcore.scratch import build_model
from tests.support.tiny import tiny_gpt2, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHAPE = ScratchModelConfig(vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
SUMS = [(a, b) for a in range(4) for b in range(5)]
COLUMNS = {
    "prompt": [f"What is {a} plus {b}?" for a, b in SUMS],
    "chosen": [f"The answer is {a + b}." for a, b in SUMS],
    "rejected": ["Sure!" if a % 2 else f"I think it is {a + b}, maybe." for a, b in SUMS],
}
SWAPPED = {"prompt": COLUMNS["prompt"], "chosen": COLUMNS["rejected"], "rejected": COLUMNS["chosen"]}


def pairs(count: int = 20, columns: dict[str, list[str]] = COLUMNS) -> PreferenceDataset:
    """The first `count` pairs; the style of the answer decides which one is chosen."""
    return PreferenceDataset(*(columns[name][:count] for name in ("prompt", "chosen", "rejected")), tiny_tokenizer(), 64, 32)


def config(**settings: Any) -> DPOConfig:
    """Settings of a run of a second."""
    small: dict[str, Any] = {"model_name": "an object is passed", "learning_rate": 1e-2, "batch_size": 4}
    small |= {"gradient_accumulation_steps": 1, "max_length": 64, "max_prompt_length": 32, "logging_steps": 1}
    return DPOConfig(**{**small, **settings})


def new_trainer(settings: DPOConfig, **arguments: Any) -> DPOTrainer:
    """A trainer of a fresh random policy; equal settings give equal trainers."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    return DPOTrainer(settings, **{"tokenizer": tiny_tokenizer(), "model": model, **arguments})


def weights_of(trainer: DPOTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_training_starts_at_ln_2_and_separates_what_can_be_separated():
    with_rate = new_trainer(config(num_epochs=8))
    history = with_rate.train(pairs())
    assert history["loss"][0] == pytest.approx(math.log(2), abs=1e-6)
    # a tie is no success
    assert (history["accuracy"][0], history["reward_margin"][0]) == (0.0, 0.0)
    assert history["accuracy"][-5:] == [1.0] * 5
    assert history["loss"][-1] < 0.4
    assert history["reward_margin"][-1] == pytest.approx(
        history["chosen_rewards"][-1] - history["rejected_rewards"][-1], abs=1e-6
    )
    idle = new_trainer(config(num_epochs=8, learning_rate=1e-12)).train(pairs())
    assert idle["loss"][-1] == pytest.approx(math.log(2), abs=1e-6)


def test_every_pair_starts_at_ln_2_though_the_model_has_dropout():
    # GPT-2 drops a tenth of its activations while training; a rate of 1e-12 leaves the policy where it is
    tokenizer = tiny_tokenizer()
    model = tiny_gpt2(vocab_size=len(tokenizer), n_positions=128).train()
    tiny = config(batch_size=1, learning_rate=1e-12, beta=1.0)
    losses = DPOTrainer(tiny, tokenizer=tokenizer, model=model).train(pairs())["loss"]
    assert losses == pytest.approx([math.log(2)] * 20, abs=1e-6)


def test_micro_batches_make_the_step_of_one_batch():
    # responses of 5 to 14 tokens: the batches of a step differ in length
    whole = new_trainer(config(batch_size=8, num_epochs=2))
    parts = new_trainer(config(batch_size=2, gradient_accumulation_steps=4, num_epochs=2))
    histories = [trainer.train(pairs()) for trainer in (whole, parts)]
    for name in histories[0]:
        assert histories[0][name] == pytest.approx(histories[1][name], abs=2e-6)
    for name, weight in weights_of(whole).items():
        # Adam divides by the gradient's size, which enlarges rounding where a gradient is near 0
        torch.testing.assert_close(weight, parts.model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_the_last_step_of_an_epoch_takes_what_is_left_and_weighs_it_fully():
    # 7 batches of one pair, 3 to a step: steps of 3, 3 and 1 pairs
    norms: list[float] = []
    settings = config(batch_size=1, gradient_accumulation_steps=3, learning_rate=1e-12, max_grad_norm=1e9)
    trainer = new_trainer(settings, on_metrics=lambda step, metrics: norms.append(metrics.get("optim/grad_norm", 0)))
    data = pairs(7)
    assert len(trainer.train(data)["loss"]) == 3
    found = norms[-1]
    trainer.model.zero_grad()
    alone = []
    for row in range(7):
        batch = data.batch([row], trainer.chat.pad_id)
        # loss of one pair at margin 0: gradient -beta / 2 and beta / 2
        (response_sums(trainer.model, batch) * torch.tensor([-0.05, 0.05])).sum().backward()
        gradients = [weight.grad for weight in trainer.model.parameters()]
        alone.append(torch.nn.utils.get_total_norm(gradients).item())
        trainer.model.zero_grad()
    assert min(abs(found - norm) for norm in alone) < 1e-5
    # more batches to a step than there are: one step
    assert len(new_trainer(config(batch_size=4, gradient_accumulation_steps=4)).train(pairs(8))["loss"]) == 1


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # 20 pairs, 5 to a step: 4 steps. Warm-up 2: 1/2, 1; then cosine from 1 to .2: 1, .2 + .8 / 2
        ({"batch_size": 5, "warmup_ratio": 0.5, "min_learning_rate_ratio": 0.2}, [0.5, 1.0, 1.0, 0.6]),
        # a tenth of 2 steps is rounded up to 1; the rate is not stuck at a tenth
        ({"batch_size": 10}, [1.0, 1.0]),
        ({"batch_size": 10, "warmup_ratio": 0.0}, [1.0, 0.5]),
    ],
)
def test_the_learning_rate_warms_up_and_falls_along_a_cosine(settings: dict[str, Any], rates: list[float]):
    seen = []
    trainer = new_trainer(config(**settings), on_metrics=lambda step, metrics: seen.append(metrics))
    trainer.train(pairs())
    found = [metrics["optim/learning_rate"] / 1e-2 for metrics in seen if "optim/learning_rate" in metrics]
    assert found == pytest.approx(rates)


def test_the_trace_names_what_it_holds_and_averages_over_the_pairs_since_the_last_report():
    seen: list[tuple[int, dict[str, float]]] = []
    trainer = new_trainer(
        config(batch_size=6, logging_steps=3), on_metrics=lambda step, metrics: seen.append((step, dict(metrics)))
    )
    history = trainer.train(pairs(), pairs(4))
    assert seen[0] == (0, {"progress/total_steps": 4.0})
    assert [step for step, _ in seen] == [0, 0, 3, 4]
    assert set(seen[2][1]) == {
        *(f"dpo/{name}" for name in ("loss", "accuracy", "margin_mean", "chosen_reward_mean", "rejected_reward_mean")),
        *(f"optim/{name}" for name in ("grad_norm", "learning_rate", "skipped_total")),
    }
    assert {"validation/loss", "validation/accuracy", "validation/margin_mean"} < set(seen[3][1])
    assert seen[2][1]["dpo/loss"] == pytest.approx(sum(history["loss"][:3]) / 3)


def test_evaluation_is_returned_for_each_interval_and_for_the_end():
    # 5 steps, evaluated at 2, 4 and 5
    trainer = new_trainer(config(eval_every=2))
    history = trainer.train(pairs(), pairs(6))
    assert len(history["loss"]) == 5
    assert [len(history[name]) for name in ("eval_loss", "eval_accuracy", "eval_margin")] == [3, 3, 3]
    assert trainer.evaluate(pairs(6)) == {name: history[name][-1] for name in ("eval_loss", "eval_accuracy", "eval_margin")}
    assert "eval_loss" not in new_trainer(config()).train(pairs())


def test_a_trainer_goes_on_being_useful_after_training(tmp_path: Path):
    trainer = new_trainer(config(num_epochs=2))
    first = trainer.train(pairs())
    second = trainer.train(pairs())
    # the reference is still the model from before the first call
    assert second["reward_margin"][0] > first["reward_margin"][0]
    assert trainer.evaluate(pairs())["eval_accuracy"] == 1.0
    trainer.save_model(tmp_path / "model")
    trainer.close()
    saved = load_causal_lm(tmp_path / "model")
    batch = pairs().batch([0, 1], trainer.chat.pad_id)
    with torch.no_grad():
        torch.testing.assert_close(response_sums(saved, batch), response_sums(trainer.model, batch))


def test_training_writes_nothing_unless_a_folder_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    new_trainer(config(save_every=1, eval_every=1)).train(pairs(), pairs(4))
    assert list(tmp_path.iterdir()) == []


def test_zero_epochs_train_nothing():
    trainer = new_trainer(config(num_epochs=0))
    before = weights_of(trainer)
    assert trainer.train(pairs(), pairs(4))["loss"] == []
    assert same(before, weights_of(trainer))


def test_without_a_reference_rewards_are_log_probabilities():
    trainer = new_trainer(config(reference_free=True, batch_size=20, beta=0.3, learning_rate=1e-12))
    assert trainer.reference_model is None
    history = trainer.train(pairs())
    with torch.no_grad():
        chosen, rejected = response_sums(trainer.model, pairs().batch(range(20), trainer.chat.pad_id)).chunk(2)
    assert history["chosen_rewards"] == pytest.approx([0.3 * chosen.mean().item()], rel=1e-5)
    assert history["rejected_rewards"] == pytest.approx([0.3 * rejected.mean().item()], rel=1e-5)
    expected = -torch.nn.functional.logsigmoid(0.3 * (chosen - rejected)).mean().item()
    assert history["loss"] == pytest.approx([expected], rel=1e-5)
    with pytest.raises(ConfigError, match="reference_free=True"):
        new_trainer(config(reference_free=True), reference_model=trainer.model)


def test_adapters_learn_against_their_own_base(tmp_path: Path):
    settings = config(lora=LoraConfig(rank=4, alpha=8), num_epochs=8)
    trainer = new_trainer(settings)
    assert trainer.reference_model is None
    frozen = {name: weight.clone() for name, weight in trainer.model.named_parameters() if not weight.requires_grad}
    history = trainer.train(pairs(), resume_dir=tmp_path / "state")
    assert history["loss"][0] == pytest.approx(math.log(2), abs=1e-6)
    assert history["accuracy"][-1] == 1.0
    assert all(torch.equal(weight, dict(trainer.model.named_parameters())[name]) for name, weight in frozen.items())
    again = new_trainer(settings)
    assert again.train(pairs(), resume_dir=tmp_path / "state")["loss"] == []
    assert same(weights_of(trainer), weights_of(again))
    trainer.save_model(tmp_path / "model")
    batch = pairs().batch([0, 1], trainer.chat.pad_id)
    with torch.no_grad():
        merged = response_sums(load_causal_lm(tmp_path / "model"), batch)
        torch.testing.assert_close(merged, response_sums(trainer.model, batch), rtol=1e-4, atol=1e-4)


class Stopped(Exception):
    """Stands for a kill."""


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    # 3 epochs of 5 steps, interrupted at step 8: in the second epoch, between two reports and after a best step
    settings = config(num_epochs=3, save_every=2, eval_every=3, logging_steps=4, learning_rate=3e-3)

    def run(folder: Path, stop_at: int) -> tuple[dict[str, list[float]], list[tuple], dict[str, torch.Tensor]]:
        trace: list[tuple] = []

        def report(step: int, metrics: dict[str, float]) -> None:
            if step == stop_at:
                raise Stopped
            trace.append((step, dict(metrics)))

        trainer = new_trainer(settings, on_metrics=report)
        history = trainer.train(pairs(), pairs(6, SWAPPED), resume_dir=folder)
        trainer.close()
        return history, trace, weights_of(trainer)

    whole_history, whole_trace, whole = run(tmp_path / "whole", -1)
    with pytest.raises(Stopped):
        run(tmp_path / "parts", 8)
    history, trace, resumed = run(tmp_path / "parts", -1)
    assert same(whole, resumed)
    assert history["loss"] == whole_history["loss"][6:]
    assert history["eval_loss"] == whole_history["eval_loss"][2:]
    assert trace == [whole_trace[0], *(entry for entry in whole_trace if entry[0] > 6)] or trace[0][0] == 6
    assert [entry for entry in trace if entry[0] > 6] == [entry for entry in whole_trace if entry[0] > 6]


CHILD = """
    import os, signal, sys
    from pathlib import Path
    from rlcore import checkpoint
    from tests.numerics.test_dpo_training import SWAPPED, config, new_trainer, pairs

    folder, place = Path(sys.argv[1]), sys.argv[2]

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def report(step, metrics):
        if place == "step" and step == 7 and "dpo/loss" in metrics:
            die()

    write_manifest = checkpoint._write_manifest

    def write(path, step, aliases):
        if place == "save" and step == 6:
            die()
        write_manifest(path, step, aliases)

    checkpoint._write_manifest = write
    settings = config(num_epochs=2, save_every=2, eval_every=5)
    trainer = new_trainer(settings, on_metrics=report)
    trainer.train(pairs(), pairs(6, SWAPPED), resume_dir=folder)
    trainer.save_model(folder / "final")
    trainer.close()
"""


@pytest.mark.slow
def test_a_killed_process_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path):
    def run(folder: Path, place: str) -> int:
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), place]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode

    assert run(tmp_path / "whole", "nowhere") == 0
    for place in ("step", "save"):
        assert run(tmp_path / place, place) == -signal.SIGKILL
        assert run(tmp_path / place, "nowhere") == 0
    weights = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("whole", "step", "save")]
    assert weights[0] == weights[1] == weights[2]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each pass over the reference measured."""
    counts: list[int] = []

    def counted(client, dataset, batches, pad_id):
        counts.append(len(dataset))
        return reference.measure_reference(client, dataset, batches, pad_id)

    monkeypatch.setattr(trainer, "measure_reference", counted)
    return counts


def test_the_reference_is_measured_once_for_all_epochs_and_calls(measured: list[int]):
    several = new_trainer(config(num_epochs=3, eval_every=1))
    several.train(pairs(), pairs(6))
    several.train(pairs(), pairs(6))
    assert measured == [20, 6]


def test_the_reference_on_disk_serves_the_same_model_and_pairs_and_no_others(tmp_path: Path, measured: list[int]):
    def values(count: int, seed: int) -> torch.Tensor:
        model = build_model(SHAPE, tiny_tokenizer(), seed)
        return new_trainer(config(), model=model).start(pairs(count), resume_dir=tmp_path).pairs.ref_logprobs

    first = values(20, seed=1)
    assert torch.equal(values(20, seed=1), first)
    assert measured == [20]
    assert values(7, seed=1).shape == (2, 7)
    assert not torch.equal(values(20, seed=2), first)
    assert measured == [20, 7, 20]
    for entry in tmp_path.glob("reference-*/logprobs.safetensors"):
        entry.write_bytes(entry.read_bytes()[:-4])
    assert torch.equal(values(20, seed=1), first)
    assert measured == [20, 7, 20, 20]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    new_trainer(config()).train(pairs(), resume_dir=tmp_path)
    others = [
        (config(beta=0.2), pairs(), {}),
        (config(), pairs(19), {}),
        (config(), pairs(), {"model": build_model(SHAPE, tiny_tokenizer(), seed=2)}),
    ]
    for settings, data, arguments in others:
        with pytest.raises(CheckpointError, match="other settings, pairs or reference"):
            new_trainer(settings, **arguments).train(data, resume_dir=tmp_path)
    # how often is saved and reported changes no number
    assert new_trainer(config(save_every=3, logging_steps=2)).train(pairs(), resume_dir=tmp_path)["loss"] == []


def test_numbers_that_are_not_finite_stop_training_and_keep_the_checkpoint(tmp_path: Path):
    def spoil(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            next(spoilt.model.parameters()).data.fill_(float("nan"))

    spoilt = new_trainer(config(num_epochs=3, save_every=1, max_non_finite_steps=2), on_metrics=spoil)
    with pytest.raises(CheckpointError, match="holds NaN"):
        spoilt.train(pairs(), resume_dir=tmp_path)
    assert (tmp_path / "step-1" / "manifest.json").exists()
    reports = []
    spoilt = new_trainer(config(num_epochs=3, max_non_finite_steps=2), on_metrics=lambda *entry: (spoil(*entry), reports.append(entry)))
    with pytest.raises(TrainingDiverged, match="2 optimiser steps in a row"):
        spoilt.train(pairs())
    # step 3 was skipped and has no loss to report
    assert reports[-1][0] == 3
    assert not any(name.startswith("dpo/") for name in reports[-1][1])
    assert reports[-1][1]["optim/skipped_total"] == 1.0


def test_a_reference_that_is_not_finite_is_found_before_training():
    broken = build_model(SHAPE, tiny_tokenizer(), seed=1)
    broken.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="20 pairs a log-probability that is not finite"):
        new_trainer(config(), reference_model=broken).train(pairs())


def test_what_does_not_fit_the_model_is_refused_up_front():
    with pytest.raises(ConfigError, match="expected at most 16"):
        new_trainer(config(max_length=16, max_prompt_length=8)).train(pairs())
    short = build_model(SHAPE.model_copy(update={"max_positions": 16}), tiny_tokenizer(), seed=1)
    with pytest.raises(ConfigError, match="Build the dataset with max_length=16"):
        new_trainer(config(), model=short).train(pairs())
    small = tiny_gpt2(vocab_size=40, n_positions=64)
    with pytest.raises(DataError, match="the model knows 40"):
        new_trainer(config(), model=small).train(pairs())
    with pytest.raises(ConfigError, match="in the reference's"):
        new_trainer(config(), reference_model=small)


def test_answers_to_validation_prompts_are_sampled_for_whoever_reads_them():
    seen: list[tuple[int, list[dict[str, Any]]]] = []
    settings = config(eval_every=3, eval_prompts=2, learning_rate=1e-12)
    listener = new_trainer(settings, on_samples=lambda step, rows: seen.append((step, rows)))
    twice = {name: [*values[:3], *values[:3]] for name, values in COLUMNS.items()}
    listener.train(pairs(), pairs(6, twice))
    assert [step for step, _ in seen] == [3, 5]
    assert [row["prompt"] for row in seen[0][1]] == COLUMNS["prompt"][:2]
    assert set(seen[0][1][0]) == {"prompt", "response", "finished"}
    # the same seeds each time, and the policy has not moved
    assert seen[0][1] == seen[1][1]


def published(tmp_path: Path, validation: dict[str, list[str]] | None, **settings: Any):
    """Result of the stage function on a model folder."""
    start = tmp_path / "start"
    build_model(SHAPE, tiny_tokenizer(), seed=1).save_pretrained(start)
    tiny_tokenizer().save_pretrained(start)
    data = datasets.DatasetDict(train=datasets.Dataset.from_dict(COLUMNS))
    if validation is not None:
        data["validation"] = datasets.Dataset.from_dict(validation)
    result = train(config(model_name=str(start), **settings), data, tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"start", "model"}
    return result


def test_the_published_weights_are_those_with_the_least_validation_loss(tmp_path: Path):
    # the validation pairs prefer the opposite, so each step of training makes them worse
    swapped = {name: values[:6] for name, values in SWAPPED.items()}
    result = published(tmp_path, swapped, num_epochs=2, eval_every=2)
    assert result.best_step == 2
    assert result.best_metrics["validation/loss"] < result.final_metrics["validation/loss"]
    final = DPOTrainer(
        config(),
        tokenizer=tiny_tokenizer(),
        model=load_causal_lm(result.model_dir),
        reference_model=load_causal_lm(tmp_path / "start"),
    )
    loss = final.evaluate(pairs(6, SWAPPED))["eval_loss"]
    assert loss == pytest.approx(result.best_metrics["validation/loss"], abs=1e-7)


def test_without_validation_pairs_the_last_weights_are_published(tmp_path: Path):
    result = published(tmp_path, None, num_epochs=2)
    assert result.best_step == 10
    assert result.best_metrics == result.final_metrics
    assert result.final_metrics["dpo/accuracy"] == 1.0


def test_the_stage_function_refuses_what_it_cannot_use(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    build_model(SHAPE, tiny_tokenizer(), seed=1).save_pretrained(tmp_path / "start")
    tiny_tokenizer().save_pretrained(tmp_path / "start")
    settings = config(model_name=str(tmp_path / "start"), num_epochs=0)

    def run(columns: dict[str, list[str]], split: str = "train", **arguments: Any) -> None:
        data = datasets.DatasetDict({split: datasets.Dataset.from_dict(columns)})
        train(settings, data, tmp_path / "model", **arguments)

    with pytest.raises(ConfigError, match="Found a reward source"):
        run(COLUMNS, reward=lambda prompts, responses, metadata=None: [0.0] * len(prompts))
    with pytest.raises(DataError, match="expected train"):
        run(COLUMNS, split="test")
    with pytest.raises(DataError, match="Split train: found no column rejected"):
        run({"prompt": ["a"], "chosen": ["b"]})
    with pytest.raises(DataError, match="Split train: Row 0, prompt"):
        run({"prompt": [" "], "chosen": ["b"], "rejected": ["c"]})
    assert not (tmp_path / "model").exists()
    run({**COLUMNS, "system": ["be brief"] * 20})
    assert "Split train: the columns system are not read" in caplog.text
    assert load_causal_lm(tmp_path / "model").num_parameters() > 0
