"""Preference training as a whole: it starts at ln 2, learns, evaluates, and cuts steps into batches exactly."""

import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from rlcore.configs import LoraConfig
from rlcore.dpo import DPOTrainer, PreferenceDataset, train
from rlcore.dpo.loss import response_sums
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from rlcore.models import load_causal_lm
from rlcore.results import TrainResult
from rlcore.scratch import build_model
from tests.support.dpo import COLUMNS, SHAPE, SWAPPED, config, new_trainer, pairs, same, weights_of
from tests.support.letters import letter_tokenizer
from tests.support.tiny import tiny_gpt2, tiny_tokenizer


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


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_prompts_of_any_length_train_from_ln_2_in_batches_of_any_size(batch_size: int):
    # prompts of 1 to 40 letters, two of them equal; with 50 there are fewer pairs than a batch takes
    prompts = ["a", "ab", "ab", "What is " + "x" * 32, "abc"]
    data = PreferenceDataset(prompts, ["Sure!"] * 5, ["I think"] * 5, tiny_tokenizer(), 64, 32)
    history = new_trainer(config(batch_size=batch_size, num_epochs=4)).train(data)
    assert history["loss"][0] == pytest.approx(math.log(2), abs=1e-6)
    assert history["accuracy"][-1] == 1.0
    assert len(history["loss"]) == 4 * math.ceil(5 / batch_size)


def test_each_batch_is_passed_forward_once_and_by_the_reference_once_for_all_epochs():
    trainer = new_trainer(config(num_epochs=2))
    passes = {"policy": 0, "reference": 0}
    for name, model in (("policy", trainer.model), ("reference", trainer.reference_model)):

        def count(*_: object, name: str = name) -> None:
            passes[name] += 1

        model.get_decoder().register_forward_hook(count)
    trainer.train(pairs())
    # 5 batches of 4 pairs
    assert passes == {"policy": 10, "reference": 5}


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


def test_gradients_are_clipped_and_weights_decay():
    # a gradient of norm 1e-12 is far below Adam's epsilon of 1e-8: what is left is the decay, by 1 - 1e-2 * 10
    trainer = new_trainer(config(batch_size=20, max_grad_norm=1e-12, weight_decay=10.0))
    before = weights_of(trainer)
    trainer.train(pairs())
    for name, weight in weights_of(trainer).items():
        torch.testing.assert_close(weight, 0.9 * before[name], rtol=1e-5, atol=2e-6)


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
        *(f"optim/{name}" for name in ("grad_norm", "learning_rate", "non_finite_steps")),
    }
    assert {"validation/loss", "validation/accuracy", "validation/margin_mean"} < set(seen[3][1])
    assert seen[2][1]["dpo/loss"] == pytest.approx(sum(history["loss"][:3]) / 3)


def test_evaluation_is_returned_for_each_interval_and_for_the_end():
    # 5 steps, evaluated at 2, 4 and 5
    trainer = new_trainer(config(eval_every=2))
    history = trainer.train(pairs(), pairs(6))
    assert len(history["loss"]) == 5
    assert [len(history[name]) for name in ("eval_loss", "eval_accuracy", "eval_margin")] == [3, 3, 3]
    assert trainer.evaluate(pairs(6)) == {
        name: history[name][-1] for name in ("eval_loss", "eval_accuracy", "eval_margin")
    }
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


def test_numbers_that_are_not_finite_stop_training_and_keep_the_checkpoint(tmp_path: Path):
    def spoil(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            next(spoilt.model.parameters()).data.fill_(float("nan"))

    spoilt = new_trainer(config(num_epochs=3, save_every=1, max_non_finite_steps=2), on_metrics=spoil)
    with pytest.raises(CheckpointError, match="holds NaN"):
        spoilt.train(pairs(), resume_dir=tmp_path)
    assert (tmp_path / "step-1" / "manifest.json").exists()
    reports = []
    spoilt = new_trainer(
        config(num_epochs=3, max_non_finite_steps=2), on_metrics=lambda *entry: (spoil(*entry), reports.append(entry))
    )
    with pytest.raises(TrainingDiverged, match="2 optimiser steps in a row"):
        spoilt.train(pairs())
    # step 3 was skipped and has no loss to report
    assert reports[-1][0] == 3
    assert not any(name.startswith("dpo/") for name in reports[-1][1])
    assert reports[-1][1]["optim/non_finite_steps"] == 1.0


def test_a_reference_that_is_not_finite_is_found_before_training():
    trainer = new_trainer(config())
    trainer.reference_model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="20 pairs a log-probability that is not finite"):
        trainer.train(pairs())


def test_what_does_not_fit_the_model_is_refused_up_front():
    with pytest.raises(ConfigError, match="expected at most 16"):
        new_trainer(config(max_length=16, max_prompt_length=8)).train(pairs())
    short = build_model(SHAPE.model_copy(update={"max_positions": 16}), tiny_tokenizer(), seed=1)
    with pytest.raises(ConfigError, match="Tokenise the pairs with max_length=16"):
        new_trainer(config(), model=short).train(pairs())
    small = tiny_gpt2(vocab_size=40, n_positions=64)
    with pytest.raises(DataError, match="dataset: found token .* the model knows 40"):
        new_trainer(config(), model=small).train(pairs())
    with pytest.raises(DataError, match="dataset: found list, expected a PreferenceDataset"):
        new_trainer(config()).train([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    others = PreferenceDataset(["a"], ["x"], ["y"], letter_tokenizer())
    with pytest.raises(DataError, match="eval_dataset: found the tokens of another tokenizer"):
        new_trainer(config()).train(pairs(), others)
    with pytest.raises(ConfigError, match="in the reference's"):
        new_trainer(config(), reference_model=small)


def test_answers_to_validation_prompts_are_sampled_for_whoever_reads_them():
    seen: list[tuple[int, list[dict[str, Any]]]] = []
    settings = config(eval_every=3, eval_prompts=2, learning_rate=1e-12)
    listener = new_trainer(settings, on_samples=lambda step, rows: seen.append((step, rows)))
    twice = {name: [value for value in values[:3] for _ in range(2)] for name, values in COLUMNS.items()}
    listener.train(pairs(), pairs(6, twice))
    assert [step for step, _ in seen] == [3, 5]
    assert [row["prompt"] for row in seen[0][1]] == COLUMNS["prompt"][:2]
    assert set(seen[0][1][0]) == {"prompt", "response", "finished"}
    # the same seeds each time, and the policy has not moved
    assert seen[0][1] == seen[1][1]


def published(tmp_path: Path, validation: dict[str, list[str]] | None, **settings: Any) -> TrainResult:
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
    result = published(tmp_path, swapped, num_epochs=2, eval_every=2, save_every=1)
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
    with pytest.raises(DataError, match="Split train: Found no column rejected"):
        run({"prompt": ["a"], "chosen": ["b"]})
    with pytest.raises(DataError, match="Split train: Row 0, prompt"):
        run({"prompt": [" "], "chosen": ["b"], "rejected": ["c"]})
    assert not (tmp_path / "model").exists()
    run({**COLUMNS, "system": ["be brief"] * 20})
    assert "The columns system are not read" in caplog.text
    assert load_causal_lm(tmp_path / "model").num_parameters() > 0
