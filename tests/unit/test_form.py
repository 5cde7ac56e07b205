"""The form of a run: every setting of params.yaml, optional, with its bounds; what is filled in becomes assignments."""

from typing import get_args

import pytest
from pydantic import ValidationError

from tasks.records.artifacts import POLICY_ALGORITHMS, STAGES
from tasks.records.form import Algorithm, SettingsForm, Stage, assignments
from tasks.records.parameters import SECTIONS, resolve
from tests.support.checkout import ROOT


def test_the_form_has_every_setting_of_every_section_and_nothing_is_filled_in():
    form = SettingsForm()
    for section, config_class in SECTIONS.items():
        (part, _) = get_args(SettingsForm.model_fields[section].annotation)
        assert set(part.model_fields) == set(config_class.model_fields)
        assert all(field.description for field in part.model_fields.values())
        assert not any(value is not None for value in part().model_dump().values())
    assert assignments(None, None, form) == assignments(None, None, None) == []


def test_what_is_filled_in_reaches_the_parameters_at_any_depth():
    form = SettingsForm.model_validate(
        {
            "sft": {"scratch": {"num_layers": 2}},
            "ppo": {"kl_target": 1e-5, "device": "cpu", "lora": {"rank": 4}},
            "gate": {"min_gain": {"win": 0}},
            "resources": {"policy": {"gpus": 0}},
        }
    )
    changes = resolve(ROOT / "params.yaml", sets=assignments("dpo", 3, form)).changes
    assert {".".join(change.key): change.new for change in changes} == {
        "algorithm": "dpo",
        "seed": 3,
        "sft.scratch.num_layers": 2,
        "ppo.kl_target": 1e-5,
        "ppo.device": "cpu",
        "ppo.lora": {"rank": 4},
        "gate.min_gain": {"win": 0},
        "resources.policy.gpus": 0,
    }


@pytest.mark.parametrize("settings", [{"ppo": {"lam": 1.5}}, {"ppo": {"lamm": 1}}, {"sft": {"scratch": {"depth": 1}}}])
def test_the_form_refuses_what_params_yaml_would_refuse(settings):
    with pytest.raises(ValidationError):
        SettingsForm.model_validate(settings)


def test_the_choices_of_the_form_are_those_of_the_pipeline():
    assert get_args(Algorithm) == POLICY_ALGORITHMS
    assert get_args(Stage) == STAGES
