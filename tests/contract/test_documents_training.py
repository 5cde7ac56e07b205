"""The blocks about PPO and DPO run, and do what they say."""

import math

import pytest
import torch
from torch import nn

import rlcore
from rlcore.models import load_causal_lm, load_tokenizer
from tests.support.documents import Page


@pytest.fixture
def decoder(models):
    return models["google/gemma-2-2b"]


def defaults_of(config):
    """The same settings with every one but the model left out."""
    return type(config)(model_name=config.model_name)


def test_ppo_config(module_page: Page):
    config = module_page.run("ppo_config")["config"]
    assert config == defaults_of(config)  # the block spells out the defaults
    assert (config.kl_horizon, config.temperature, config.top_p, config.value_coef) == (10000, 0.7, 0.9, 0.5)


def test_ppo_architecture(decoder):
    base_model = load_causal_lm(decoder)
    model = rlcore.PPOModel(base_model)
    assert model.base_model is base_model
    assert isinstance(model.value_head, rlcore.ValueHead)
    assert model.hidden_size == 16
    # hidden -> ReLU -> output (scalar value)
    assert [type(layer) for layer in model.value_head.children()] == [nn.Linear, nn.ReLU, nn.Linear]
    assert model.value_head(torch.ones(2, 3, 16)).shape == (2, 3)


def test_kl_controller(module_page: Page):
    module_page.run("kl_controller")
    controller = rlcore.AdaptiveKLController(0.01, target=0.01, horizon=100)
    controller.update(1.0, 10)
    # a hundred times the target: the proportional error is clipped to 0.2; 0.01 * (1 + 0.2 * 10 / 100)
    assert controller.value == pytest.approx(0.0102)
    controller.update(0.0, 10)
    assert controller.value == pytest.approx(0.0102 * 0.98)


@pytest.mark.slow
def test_ppo_training(module_page: Page, decoder):
    responses = []

    def evaluate_response(response):
        responses.append(response)
        return response.count("e")

    names = module_page.run("ppo_training", tokenizer=load_tokenizer(decoder), evaluate_response=evaluate_response)
    trainer, metrics = names["trainer"], names["metrics"]
    assert set(metrics) == {"policy_loss", "value_loss", "kl_divergence", "entropy", "rewards", "kl_coef"}
    assert all(len(values) == 100 for values in metrics.values())
    assert all(math.isfinite(value) for values in metrics.values() for value in values)
    assert len(responses) == 100 * names["config"].batch_size
    assert metrics["rewards"][0] == pytest.approx(sum(text.count("e") for text in responses[:16]) / 16)
    # Adjusts kl_penalty_coef
    assert metrics["kl_coef"][0] == names["config"].kl_penalty_coef
    assert metrics["kl_coef"][-1] != metrics["kl_coef"][0]
    assert isinstance(trainer.training_client, rlcore.AsyncTrainingClient)
    # Frozen copy to prevent drift
    start = load_causal_lm(decoder).state_dict()
    reference = trainer.reference_model
    assert not any(weight.requires_grad for weight in reference.parameters())
    assert all(torch.equal(weight, start[name]) for name, weight in base_of(reference).state_dict().items())
    assert any(not torch.equal(weight, start[name]) for name, weight in base_of(trainer.model).state_dict().items())
    trainer.close()


def base_of(model):
    return model.base_model if isinstance(model, rlcore.PPOModel) else model


def test_dpo_config(module_page: Page):
    config = module_page.run("dpo_config")["config"]
    assert config == defaults_of(config)


def test_preference_dataset(module_page: Page, decoder):
    tokenizer = load_tokenizer(decoder)
    held_out = rlcore.PreferenceDataset(["Name a colour."], ["Blue."], ["no"], tokenizer)
    names = module_page.run("preference_dataset", tokenizer=tokenizer, eval_dataset=held_out)
    dataset, trainer, metrics = names["dataset"], names["trainer"], names["metrics"]
    assert len(dataset) == 2
    prompt_length = dataset[0]["prompt_length"]
    assert tokenizer.decode(dataset[0]["chosen_input_ids"][prompt_length:-1]) == "AI is artificial intelligence..."
    assert set(metrics) == {
        "loss", "accuracy", "reward_margin", "chosen_rewards", "rejected_rewards",
        "eval_loss", "eval_accuracy", "eval_margin",
    }  # fmt: skip
    # Two pairs are one optimiser step, and before it the policy is its reference: ln 2 and no margin.
    assert metrics["loss"] == [pytest.approx(math.log(2), abs=1e-6)]
    assert metrics["reward_margin"] == [pytest.approx(0.0, abs=1e-6)]
    assert len(metrics["eval_loss"]) == 1
    assert trainer.evaluate(held_out)["eval_loss"] == pytest.approx(metrics["eval_loss"][0])
    trainer.close()


def test_reference_free(module_page: Page, decoder):
    config = module_page.run("reference_free")["config"]
    tokenizer = load_tokenizer(decoder)
    trainer = rlcore.DPOTrainer(config, tokenizer)
    assert trainer.reference_model is None
    dataset = rlcore.PreferenceDataset(["What is AI?"], ["A machine that thinks."], ["idk"], tokenizer)
    metrics = trainer.train(dataset)
    # without a reference the reward is beta times the log-probability of the response
    assert metrics["chosen_rewards"][0] < metrics["rejected_rewards"][0] < 0
    trainer.close()
