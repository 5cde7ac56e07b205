"""Settings made in Python: what is refused, in which words, and what YAML may write."""

import copy
import pickle

import pytest

from rlcore.configs import GateConfig, GRPOConfig, LoraConfig, PPOConfig, RewardModelConfig
from rlcore.errors import ConfigError


def message(config_class, **settings) -> str:
    with pytest.raises(ConfigError) as caught:
        config_class(**settings)
    return str(caught.value)


def test_wrong_settings_are_a_config_error_that_says_which_what_and_what_to_do():
    unknown, missing = message(PPOConfig, lr=1e-5).splitlines()[::-1]
    assert unknown.startswith("PPOConfig.lr: unknown key. Known keys: seed, model_name, ")
    assert missing == "PPOConfig.model_name: missing. Give it a value."
    assert message(PPOConfig, model_name="m", gamma=2) == (
        "PPOConfig.gamma: found 2. Input should be less than or equal to 1. Correct the value."
    )
    assert message(PPOConfig, model_name="m", batch_size=1) == (
        "PPOConfig: mini_batch_size=4 is larger than batch_size=1. Change one of them."
    )
    assert message(PPOConfig, model_name="m", lora={"rank": 0}).startswith("PPOConfig.lora.rank: found 0. ")
    assert message(LoraConfig, rank=0).startswith("LoraConfig.rank: found 0. ")


@pytest.mark.parametrize(
    ("config_class", "name", "value"),
    [
        (PPOConfig, "batch_size", True),
        (PPOConfig, "learning_rate", True),
        (PPOConfig, "value_clip", False),
        (PPOConfig, "seed", False),
        (PPOConfig, "lora", {"rank": True}),
        (GateConfig, "min_gain", {"gold": True}),
    ],
)
def test_true_is_no_number(config_class, name, value):
    assert "Input should be a number, not true or false" in message(config_class, model_name="m", **{name: value})


@pytest.mark.parametrize("value", [1, 0, 1.0])
def test_a_number_is_no_switch(value):
    for config_class, name in ((GRPOConfig, "mask_truncated"), (RewardModelConfig, "use_lora")):
        found = message(config_class, model_name="m", **{name: value})
        assert found.endswith(f"found {value}. Input should be true or false, not a number. Correct the value.")


def test_a_whole_number_is_a_fraction_too_and_numbers_may_come_as_text():
    config = PPOConfig(model_name="m", gamma=1, learning_rate="1e-5", batch_size="8", value_clip=None)
    assert (config.gamma, config.learning_rate, config.batch_size, config.value_clip) == (1.0, 1e-5, 8, None)
    assert GRPOConfig(model_name="m", mask_truncated=True).mask_truncated


def test_changed_settings_are_checked_like_new_ones():
    config = PPOConfig(model_name="m", lora=LoraConfig(rank=2))
    changed = config.model_copy(update={"batch_size": 8})
    assert (changed.batch_size, changed.lora, config.batch_size) == (8, LoraConfig(rank=2), 16)
    for wrong in ({"batch_size": 2}, {"batchsize": 8}, {"num_iterations": True}):
        with pytest.raises(ConfigError, match="PPOConfig"):
            config.model_copy(update=wrong)


def test_settings_cross_process_borders():
    config = PPOConfig(model_name="m", lora=LoraConfig(rank=2))
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
