"""A section of a parameter file becomes a config, or an error that says what to do."""

import pytest

from rlcore.configs import DPOConfig, PPOConfig, SFTConfig
from rlcore.errors import ConfigError
from rlcore.sections import build_config


def message(config_class, section, values) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(config_class, section, values)
    return str(caught.value)


def test_a_section_becomes_its_config():
    assert build_config(SFTConfig, "sft", {"scratch": {"num_layers": 1}}).scratch.num_layers == 1
    assert build_config(PPOConfig, "ppo", {"model_name": "m", "lora": {"rank": 2}}).lora.rank == 2


def test_an_unknown_key_is_told_the_keys_of_its_own_level():
    whole = message(SFTConfig, "sft", {"max_step": 1})
    assert whole.startswith("sft.max_step: unknown key. Known keys: seed, model_name, ")
    nested = message(SFTConfig, "sft", {"scratch": {"layers": 1}})
    assert nested == (
        "sft.scratch.layers: unknown key. Known keys: vocab_size, hidden_size, num_layers, num_heads, "
        "intermediate_size, max_positions, initializer_range. Correct or remove it."
    )
    # a setting that may also be null
    optional = message(PPOConfig, "ppo", {"model_name": "m", "lora": {"dropout": 0.1}})
    assert optional == ("ppo.lora.dropout: unknown key. Known keys: rank, alpha, target_modules. Correct or remove it.")


def test_a_wrong_value_is_shown_with_what_was_expected_and_what_to_do():
    found = message(PPOConfig, "ppo", {"model_name": "m", "gamma": 1.5})
    assert found == "ppo.gamma: found 1.5. Input should be less than or equal to 1. Correct the value."
    assert message(PPOConfig, "ppo", {}) == "ppo.model_name: missing. Give it a value."
    both = message(PPOConfig, "ppo", {"gamma": "x"}).splitlines()
    assert [line.split(":")[0] for line in both] == ["ppo.model_name", "ppo.gamma"]


def test_settings_that_contradict_each_other_are_named_without_the_whole_section():
    found = message(PPOConfig, "ppo", {"model_name": "m", "mini_batch_size": 32, "batch_size": 8})
    assert found == "ppo: mini_batch_size=32 is larger than batch_size=8. Change one of them."
    nested = message(SFTConfig, "sft", {"scratch": {"num_heads": 3}})
    assert nested == "sft.scratch: num_heads=3 does not divide hidden_size=64. Change one of them."
    length = message(DPOConfig, "dpo", {"model_name": "m", "max_length": 8, "max_prompt_length": 8})
    assert length == "dpo: max_prompt_length=8 leaves no token for the response in max_length=8. Change one of them."


@pytest.mark.parametrize(("values", "found"), [(None, "nothing"), ([1], "list [1]")])
def test_a_section_is_a_mapping(values, found):
    text = message(SFTConfig, "sft", values)
    assert text == f"Section 'sft': found {found}, expected a mapping of settings. Add `sft:` to the file."
