"""Which trainer runs a stage, and the names that `rlcore` offers."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import rlcore
from rlcore.backends import DEFAULT_BACKENDS, TRAINERS, backends_of, trainer_for
from rlcore.errors import ConfigError


@pytest.mark.parametrize(("stage", "backend"), TRAINERS)
def test_every_trainer_has_the_common_interface(stage: str, backend: str):
    train = trainer_for(stage, backend)
    assert train is import_module(TRAINERS[stage, backend]).train
    parameters = inspect.signature(train).parameters
    assert list(parameters)[:3] == ["config", "data", "output_dir"]
    named = {name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named - {"environment"} == {"reward", "reference", "resume_dir", "on_metrics", "on_samples"}


def test_a_stage_has_a_default_backend_among_those_that_there_are():
    assert DEFAULT_BACKENDS == {
        "sft": "trl", "reward": "own", "ppo": "own", "grpo": "own", "dpo": "own", "orpo": "trl"
    }  # fmt: skip
    assert {stage for stage, _ in TRAINERS} == set(DEFAULT_BACKENDS)
    for stage, backend in DEFAULT_BACKENDS.items():
        assert trainer_for(stage) is trainer_for(stage, None) is trainer_for(stage, backend)


def test_what_does_not_exist_is_answered_with_what_does():
    with pytest.raises(ConfigError, match="Found stage 'rloo', expected one of: sft, reward, ppo, grpo, dpo, orpo"):
        trainer_for("rloo")
    with pytest.raises(ConfigError, match=r"Found backend 'trl' for stage ppo, expected one of: own\."):
        trainer_for("ppo", "trl")
    with pytest.raises(ConfigError, match=r"Found backend 'own' for stage sft, expected one of: trl\."):
        trainer_for("sft", "own")
    assert backends_of("dpo") == ["own", "trl"]


def test_naming_a_trainer_loads_no_trl():
    command = (
        "import sys; from rlcore.backends import DEFAULT_BACKENDS, TRAINERS, backends_of, trainer_for; "
        "[trainer_for(*key) for key in TRAINERS]; assert 'trl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True)


AMONG_OURSELVES = {
    "train", "ScoreCheck", "checked_counts", "checked_scores_or_nan", "own_copies", "responses_per_prompt"
}  # fmt: skip
"""What packages of the library hand each other, and nobody needs at the top."""


def test_every_name_of_the_library_loads_and_is_listed_once():
    assert len(rlcore.__all__) == len(set(rlcore.__all__))
    for name in rlcore.__all__:
        assert getattr(rlcore, name) is not None
    for package in ("environments", "reward_functions", "dpo"):
        module = import_module(f"rlcore.{package}")
        assert {*module.__all__} - AMONG_OURSELVES <= {*rlcore.__all__}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'NoSuchTrainer'"):
        _ = rlcore.NoSuchTrainer
