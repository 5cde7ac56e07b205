"""params.yaml and the example files stay in step with the classes that define every setting."""

from typing import get_args

import pytest
from pydantic import BaseModel

from tasks.records.parameters import SECTIONS, TOP_LEVEL, load_parameters, read_yaml, resolve
from tests.support.checkout import ROOT

EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def test_params_yaml_is_complete():
    values = read_yaml(ROOT / "params.yaml")
    assert list(values) == [*TOP_LEVEL, *SECTIONS]
    for section, config_class in SECTIONS.items():
        assert missing_keys(values[section], config_class) == [], section
    load_parameters(ROOT / "params.yaml")


def missing_keys(values, config_class):
    """Settings of a class, and of the classes within, that a mapping lacks. A section may leave its seed to the run."""
    missing = [name for name in config_class.model_fields if name != "seed" and name not in values]
    for name, field in config_class.model_fields.items():
        nested = [each for each in (field.annotation, *get_args(field.annotation)) if is_config(each)]
        if nested and isinstance(values.get(name), dict):
            missing += [f"{name}.{key}" for key in missing_keys(values[name], nested[0])]
    return missing


def is_config(annotation):
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_a_missing_setting_is_noticed_also_within_another():
    values = read_yaml(ROOT / "params.yaml")["sft"]
    del values["max_steps"], values["scratch"]["num_heads"]
    assert missing_keys(values, SECTIONS["sft"]) == ["max_steps", "scratch.num_heads"]


def test_every_section_of_a_stage_is_a_class_and_the_other_way_round():
    algorithms = ["ppo", "grpo", "dpo", "orpo"]
    around = ["demo_data", "validate", "sft", "reward", *algorithms, "evaluate", "gate", "register"]
    assert list(SECTIONS) == [*around, "resources", "practices"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_file_loads_over_the_defaults(example):
    assert resolve(ROOT / "params.yaml", example).changes


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_meaning(section):
    for name, field in SECTIONS[section].model_fields.items():
        assert field.description, f"{section}.{name} has no docstring"
