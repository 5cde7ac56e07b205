"""What every trainer refuses in its constructor, whatever it learns from; and what it refuses to train on."""

import copy

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from rlcore.configs import DPOConfig, LoraConfig, RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.models import choose_device
from rlcore.reward import RewardModel, RewardModelTrainer
from rlcore.scratch import build_model
from tests.support import dpo, grpo, ppo
from tests.support.ppo import PROMPTS, SHAPE
from tests.support.tiny import tiny_llama, tiny_tokenizer

TRAINERS = {
    "ppo": lambda settings, **arguments: ppo.tiny_trainer(ppo.tiny_config(**settings), **arguments),
    "grpo": lambda settings, **arguments: grpo.trainer(grpo.config(**settings), **arguments),
    "dpo": lambda settings, **arguments: dpo.new_trainer(dpo.config(**settings), **arguments),
}


def policy():
    return build_model(SHAPE, tiny_tokenizer(), seed=1)


def poisoned():
    model = policy()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 1] = torch.nan
    return model


def t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def sharing():
    model = policy()
    return {"model": model, "reference_model": copy.copy(model)}


def sharing_one_weight():
    model, reference = policy(), policy()
    reference.model.layers[0].mlp.up_proj.weight = nn.Parameter(model.model.layers[0].mlp.up_proj.weight.data)
    return {"model": model, "reference_model": reference}


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS.keys())
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (sharing, "of the model in reference_model too"),
        (sharing_one_weight, "Found model.layers.0.mlp.up_proj.weight of the model in reference_model too"),
        (lambda: {"model": policy().requires_grad_(False)}, "frozen as a whole"),
        (lambda: {"model": policy().half()}, "trained weights in torch.float16.*expected float32"),
        (lambda: {"model": poisoned()}, "found NaN or infinity in model.layers.0.mlp.up_proj.weight"),
        (lambda: {"reference_model": poisoned()}, "found NaN or infinity in model.layers.0.mlp.up_proj.weight"),
        (lambda: {"tokenizer": "gpt2"}, "tokenizer: found a str, expected a tokenizer"),
        (lambda: {"model": nn.Linear(1, 1)}, "Found a Linear, expected a causal language model"),
        (lambda: {"model": {}}, "Found a dict, expected a causal language model"),
        (lambda: {"model": t5()}, "Found a T5ForConditionalGeneration, expected a causal language model"),
        (lambda: {"model": policy().to("meta")}, "weights on the device meta, such as model.embed_tokens.weight"),
        (lambda: {"reference_model": nn.Linear(1, 1)}, "Found a Linear, expected a causal language model"),
        (lambda: {"on_metrics": 5}, "on_metrics: found 5, expected a function"),
        (lambda: {"on_samples": None}, "on_samples: found None, expected a function"),
    ],
)
def test_what_cannot_be_trained_is_refused(trainer, arguments, message):
    with pytest.raises(ConfigError, match=message):
        trainer({}, **arguments())


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS.keys())
def test_adapters_may_lie_on_what_is_frozen_or_half(trainer):
    model = policy().half().requires_grad_(False)
    trainer({"lora": LoraConfig(rank=2)}, model=model).close()


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS.keys())
def test_a_reference_of_its_own_may_be_half(trainer):
    trainer({}, model=policy(), reference_model=policy().half()).close()


def test_settings_of_another_class_are_refused_with_what_to_do():
    for build in (ppo.tiny_trainer, dpo.new_trainer):
        with pytest.raises(ConfigError, match=r"Found a dict, expected a (PPO|DPO)Config\. Build one: \1Config\("):
            build({"model_name": "tiny"})
    settings = RewardModelConfig(model_name="an object is passed")
    for build in (lambda: RewardModel({}), lambda: RewardModelTrainer(RewardModel(settings, tiny_llama()), None, {})):
        with pytest.raises(ConfigError, match="Found a dict, expected a RewardModelConfig"):
            build()
    with pytest.raises(ConfigError, match="Found a LlamaForCausalLM, expected a RewardModel"):
        RewardModelTrainer(tiny_llama(), tiny_tokenizer(), settings)
    with pytest.raises(ConfigError, match="tokenizer: found a NoneType"):
        RewardModelTrainer(RewardModel(settings, tiny_llama()), None, settings)
    with pytest.raises(ConfigError, match="Found a DPOConfig, expected a GRPOConfig"):
        grpo.trainer(DPOConfig(model_name="tiny"))


def test_nothing_is_computed_on_the_device_meta():
    with pytest.raises(ConfigError, match="device='meta': nothing is computed there"):
        choose_device("meta")


# missing_eos_score takes the place of a score, of which none is beyond 1e15.


@pytest.mark.parametrize("trainer", [TRAINERS["ppo"], TRAINERS["grpo"]], ids=["ppo", "grpo"])
def test_the_score_of_a_cut_response_is_limited_as_others_are(trainer):
    with pytest.raises(ConfigError, match=r"missing_eos_score=-1e\+30: expected at most 1e\+15 either way"):
        trainer({"missing_eos_score": -1e30})
    trainer({"missing_eos_score": -1e15}).close()


@pytest.fixture
def tiny():
    trainer = ppo.tiny_trainer(ppo.tiny_config(num_iterations=1))
    yield trainer
    trainer.close()


@pytest.mark.parametrize("count", [1.5, True, float("nan"), "2", -1])
def test_iterations_are_counted_in_whole_numbers(tiny, count):
    with pytest.raises(ConfigError, match="num_iterations=.*expected a whole number of at least 0"):
        tiny.train(PROMPTS, count)


@pytest.mark.parametrize("prompts", [None, 5, set(PROMPTS), iter(PROMPTS)], ids=["none", "number", "set", "iterator"])
def test_prompts_are_a_list_in_an_order(tiny, prompts):
    with pytest.raises(DataError, match=f"Found a {type(prompts).__name__} as prompts, expected a list"):
        tiny.train(prompts)
    if prompts is not None:
        with pytest.raises(DataError, match=f"Found a {type(prompts).__name__} as prompts, expected a list"):
            tiny.train(PROMPTS, validation_prompts=prompts)


def test_no_validation_prompts_are_none_or_an_empty_list(tiny):
    for validation in (None, [], ()):
        assert "eval_rewards" not in tiny.train(PROMPTS, 0, validation_prompts=validation)
