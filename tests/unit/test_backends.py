"""Which trainer runs a stage, and the names that `rlcore` offers."""

from importlib import import_module

import pytest

import rlcore
from rlcore.backends import TRAINERS, trainer_for
from rlcore.errors import ConfigError


@pytest.mark.parametrize("stage", TRAINERS)
def test_every_stage_has_a_train_function_of_the_common_interface(stage: str):
    train = trainer_for(stage)
    assert train is import_module(TRAINERS[stage]).train


def test_a_stage_without_a_trainer_is_told_which_have_one():
    with pytest.raises(ConfigError, match="Found stage 'grpo', expected one of: sft, reward, ppo, dpo"):
        trainer_for("grpo")


def test_every_name_of_the_library_loads_and_is_listed_once():
    assert len(rlcore.__all__) == len(set(rlcore.__all__))
    for name in rlcore.__all__:
        assert getattr(rlcore, name) is not None
    for package in ("environments", "reward_functions", "dpo"):
        module = import_module(f"rlcore.{package}")
        assert {*module.__all__} - {"train"} <= {*rlcore.__all__}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'GRPOTrainer'"):
        _ = rlcore.GRPOTrainer
