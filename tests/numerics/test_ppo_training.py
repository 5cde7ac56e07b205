"""PPO as a whole: it learns, the first ratio is 1, warm-up moves nothing, accumulation changes nothing."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rlcore.errors import TrainingDiverged
from rlcore.ppo import trainer as ppo_trainer
from rlcore.ppo.update import ppo_loss
from rlcore.scratch import build_model
from tests.support.ppo import PROMPTS, SHAPE, iterations, running, same, tiny_config, untimed, weights_of
from tests.support.rollouts import measured, rollout
from tests.support.tiny import tiny_gpt2, tiny_tokenizer


@pytest.mark.parametrize(("learning_rate", "learns"), [(5e-3, True), (1e-12, False)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_score_rises_by_three_standard_errors_and_only_where_it_learns(seed, learning_rate, learns):
    config = tiny_config(seed=seed, learning_rate=learning_rate, num_iterations=16, batch_size=32)
    with running(config) as (trainer, _):
        scores = torch.tensor(trainer.train(PROMPTS)["rewards"])
    first, last = scores[:5], scores[-5:]
    standard_error = ((first.var() + last.var()) / 5).sqrt()
    assert bool(last.mean() - first.mean() > 3 * standard_error) is learns


def llama_with_dropout() -> PreTrainedModel:
    """The tiny policy, 30 % of whose attention is dropped while training."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    config = LlamaConfig(**{**model.config.to_dict(), "attention_dropout": 0.3})
    dropping = LlamaForCausalLM(config)
    dropping.load_state_dict(model.state_dict())
    return dropping.train()


@pytest.mark.parametrize("make", [llama_with_dropout, lambda: tiny_gpt2(vocab_size=300).train()])
def test_before_the_first_update_every_ratio_is_one_in_spite_of_dropout(make):
    config = tiny_config(temperature=0.7, mini_batch_size=16, ppo_epochs=1, num_iterations=1)
    with running(config, model=make()) as (trainer, reported):
        batch = trainer.collect(trainer.encode(PROMPTS), range(16), ("rollout", 0))
        with torch.no_grad():
            outputs = trainer.model.response_outputs(batch.sequences, 0.7)
        ratio = (outputs.logprobs - batch.old_logprobs).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)
        trainer.train(PROMPTS)
    (metrics,) = iterations(reported)
    # the reference is the policy still, at the sampling temperature too
    assert metrics["kl/ref_k3_token_mean"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["policy/first_ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["policy/clip_fraction"] == 0.0
    assert metrics["kl/update_token_mean"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["kl/update_k3_token_mean"] == pytest.approx(0.0, abs=1e-6)
    # at ratio 1 the loss is minus the mean of the whitened advantages, which is 0
    assert metrics["policy/loss"] == pytest.approx(0.0, abs=1e-5)


def test_warm_up_trains_the_critic_and_leaves_the_policy_alone():
    with running(tiny_config(num_iterations=3, value_warmup_iterations=2)) as (trainer, reported):
        before, critic_before = weights_of(trainer), trainer.model.value_head.output.weight.clone()
        trainer.train(PROMPTS, 2)
        assert same(before, weights_of(trainer))
        assert not torch.equal(critic_before, trainer.model.value_head.output.weight)
        trainer.train(PROMPTS, 3)
        assert not same(before, weights_of(trainer))
    first, second, third = iterations(reported)
    assert (first["policy/loss"], second["policy/loss"]) == (0.0, 0.0)
    assert first["policy/ratio_mean"] == second["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    # two forward passes of different shape agree to rounding; a trunk that had moved would show thousandths
    assert third["kl/ref_sequence_mean"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(("rows", "part", "parts"), [(16, 4, 4), (10, 3, 4)])
def test_micro_batches_make_the_step_of_one_batch(rows, part, parts):
    # 10 rows come in parts of 3, 3, 3 and 1. With adam_eps 1 the step is along the gradient: rounding of a small one is
    # not blown up to a whole learning rate.
    figures, weights = [], []
    for sizes in ({"mini_batch_size": rows}, {"mini_batch_size": part, "gradient_accumulation_steps": parts}):
        with running(tiny_config(num_iterations=1, batch_size=rows, adam_eps=1.0, **sizes)) as (trainer, reported):
            trainer.train(PROMPTS)
            figures.append(untimed(iterations(reported)[0]))
            weights.append(weights_of(trainer))
    assert figures[0] == pytest.approx(figures[1], abs=1e-6)
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-6)


def test_batches_mini_batches_and_evaluations_are_as_many_as_the_settings_say():
    # 40 prompts, 8 answered in each of 4 iterations; steps of 2 x 2 rows: 2 a pass, 3 passes; evaluations at 0, 2 and 4
    asked: list[int] = []

    def count(prompts, responses, metadata=None):
        asked.append(len(prompts))
        return [1.0] * len(responses)

    config = tiny_config(batch_size=8, mini_batch_size=2, gradient_accumulation_steps=2, ppo_epochs=3)
    with running(config, reward_fn=count) as (trainer, reported):
        history = trainer.train([f"What is {a} plus 1?" for a in range(40)], validation_prompts=PROMPTS[:5])
    assert asked == [5, 8, 8, 5, 8, 8, 5]
    assert [metrics["optim/step_count"] for metrics in iterations(reported)] == [6.0] * 4
    assert [step for step, metrics in reported if "validation/score_mean" in metrics] == [0, 2, 4]
    assert history["rewards"] == [1.0] * 4
    assert history["eval_rewards"] == [1.0] * 3


def test_the_history_holds_what_was_reported_one_value_an_iteration():
    with running(tiny_config(num_iterations=2)) as (trainer, reported):
        history = trainer.train(PROMPTS)
        assert trainer.final_metrics.items() >= iterations(reported)[-1].items()
    named = {
        "policy_loss": "policy/loss",
        "value_loss": "value/loss",
        "kl_divergence": "kl/ref_token_mean",
        "entropy": "policy/entropy_mean",
        "rewards": "reward/score_mean",
        "kl_coef": "kl/coef",
    }
    assert history == {key: [metrics[name] for metrics in iterations(reported)] for key, name in named.items()}
    assert all(len(values) == 2 for values in history.values())
    assert reported[0] == (0, {"progress/total_steps": 2.0})


def test_a_step_that_moves_too_far_is_the_last_of_its_update():
    config = tiny_config(num_iterations=1, learning_rate=0.1, ppo_epochs=8, max_update_kl=0.05)
    with running(config) as (trainer, reported):
        trainer.train(PROMPTS)
    (metrics,) = iterations(reported)
    assert 2 <= metrics["optim/step_count"] < 16


@pytest.mark.parametrize(("unit", "coefficient"), [("sequence", 0.10004), ("token", 0.09996)])
def test_the_controller_reads_the_kl_of_its_unit(unit, coefficient, monkeypatch):
    # 2 responses of 50 tokens, each 0.16 nats: 8 a response, against a target of 6 too much; against 6 a token too
    # little. 0.1 (1 +- 0.2 * 2 / 1000)
    monkeypatch.setattr(ppo_trainer.PPOTrainer, "update", lambda *arguments: {})
    settings = {"kl_penalty_coef": 0.1, "kl_target": 6.0, "kl_horizon": 1000, "kl_target_unit": unit}
    with running(tiny_config(**settings)) as (trainer, _):
        metrics = trainer.learn(rollout(*[measured([-1.0] * 50, [-1.16] * 50)] * 2))
        # the coefficient of this iteration is reported, the next one is kept
        assert metrics["kl/coef"] == 0.1
        assert trainer.kl_controller.value == pytest.approx(coefficient)


def test_one_loss_that_is_no_number_costs_its_step_and_is_counted(monkeypatch):
    calls = []

    def sometimes_nan(*arguments):
        calls.append(1)
        loss, metrics = ppo_loss(*arguments)
        return loss * (float("nan") if len(calls) == 3 else 1.0), metrics

    monkeypatch.setattr(ppo_trainer, "ppo_loss", sometimes_nan)
    # 2 micro-batches to a step, 2 steps: the second loses both of its micro-batches
    config = tiny_config(num_iterations=1, mini_batch_size=4, gradient_accumulation_steps=2, ppo_epochs=1)
    with running(config) as (trainer, reported):
        history = trainer.train(PROMPTS)
        assert all(bool(weight.isfinite().all()) for weight in trainer.model.parameters())
        assert trainer.optimizer.state_dict()["state"][0]["step"] == 1
    (metrics,) = iterations(reported)
    assert metrics["optim/non_finite_steps"] == 1.0
    assert all(values[0] == values[0] for values in history.values())


def test_weights_that_are_not_finite_stop_training_and_keep_the_checkpoint(tmp_path: Path):
    def spoil(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            trainer.model.value_head.output.bias.data.fill_(float("nan"))

    config = tiny_config(num_iterations=9, save_every=2, max_non_finite_steps=2)
    with running(config) as (trainer, _):
        trainer.on_metrics = spoil
        with pytest.raises(TrainingDiverged, match="2 optimiser steps in a row"):
            trainer.train(PROMPTS, resume_dir=tmp_path)
    assert (tmp_path / "step-2" / "manifest.json").exists()


def test_a_trainer_leaves_the_random_stream_of_its_caller_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with running(tiny_config(num_iterations=1)) as (trainer, _):
        trainer.train(PROMPTS)
    assert torch.equal(torch.rand(2), expected)


def test_zero_iterations_train_nothing_and_none_means_the_settings():
    with running(tiny_config(num_iterations=1)) as (trainer, _):
        before = weights_of(trainer)
        assert trainer.train(PROMPTS, 0)["rewards"] == []
        assert same(before, weights_of(trainer))
        assert len(trainer.train(PROMPTS)["rewards"]) == 1
        # all are done; the trainer is still of use
        assert trainer.train(PROMPTS)["rewards"] == []
        assert len(trainer.generate_responses(PROMPTS)) == 16
