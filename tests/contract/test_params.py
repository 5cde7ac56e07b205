"""params.yaml and the example files stay in step with the classes that define every setting."""

import pytest

from tasks.records.parameters import SECTIONS, load_parameters, read_yaml, resolve
from tests.support.checkout import ROOT

EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def test_params_yaml_is_complete():
    values = read_yaml(ROOT / "params.yaml")
    assert list(values) == ["algorithm", "seed", *SECTIONS]
    load_parameters(ROOT / "params.yaml")


def test_every_section_of_a_stage_is_a_class_and_the_other_way_round():
    assert list(SECTIONS) == ["demo_data", "validate", "sft", "reward", "ppo", "evaluate", "gate", "register"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_file_loads_over_the_defaults(example):
    assert resolve(ROOT / "params.yaml", example).changes


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_meaning(section):
    for name, field in SECTIONS[section].model_fields.items():
        assert field.description, f"{section}.{name} has no docstring"
