"""A project refuses what it cannot do before it reads or writes anything."""

import pytest

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from rlcore.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def project(process: bool = True, backend: str = "local", **settings) -> AutoTrainProject:
    return AutoTrainProject(LLMTrainingParams(**settings), backend=backend, process=process)


def test_another_machine_is_refused():
    with pytest.raises(ConfigError, match="expected 'local'"):
        project(backend="spaces-a10g")


def test_an_unread_setting_is_refused_by_name_with_the_reason():
    with pytest.raises(ConfigError, match=r"sft does not read dpo_beta=0.5 \(it is for dpo, orpo\)"):
        project(trainer="sft", dpo_beta=0.5)


def test_columns_are_named_only_where_they_are_renamed():
    with pytest.raises(ConfigError, match=r"text_column='q' \(it needs process=True\)"):
        project(process=False, trainer="sft", text_column="q")
    project(trainer="sft", text_column="q")


def test_ppo_needs_a_reward_model_or_a_reference():
    with pytest.raises(ConfigError, match="neither rl_reward_model_path nor model_ref"):
        project(trainer="ppo")
    project(trainer="ppo", model_ref="reference")
    project(trainer="ppo", rl_reward_model_path="reward")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rl_reward_fn": "custom"}, "module:function"),
        ({"rl_reward_fn": "default", "rl_reward_model_path": "reward"}, "two rewards"),
        ({"rl_reward_weights": {"default": 1}}, "rl_reward_weights for one reward"),
        ({"rl_env_config": {}}, "rl_env_config for one reward"),
        ({"rl_multi_objective": True}, "neither rl_reward_weights nor rl_env_config"),
        ({"rl_env_type": "multi_objective"}, "neither rl_reward_weights nor rl_env_config"),
        ({"rl_multi_objective": True, "rl_reward_weights": {"reward_model": 1}}, "a weight for reward_model"),
        (
            {"rl_multi_objective": True, "rl_reward_weights": {"default": 1}, "rl_reward_model_path": "reward"},
            "no weight for reward_model",
        ),
        (
            {"rl_multi_objective": True, "rl_reward_weights": {"default": 1}, "rl_reward_fn": "default"},
            "one of several",
        ),
        ({"rl_env_type": "preference_comparison"}, "offers multi_objective alone"),
        ({"rl_env_type": "text_generation"}, "offers multi_objective alone"),
    ],
)
def test_rewards_that_contradict_each_other_are_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        project(trainer="ppo", model_ref="reference", **settings)


def test_grpo_needs_a_module_and_a_class():
    with pytest.raises(ConfigError, match="rl_env_module='envs' and rl_env_class=None"):
        project(trainer="grpo", rl_env_module="envs")


def test_nothing_but_a_model_is_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    project(trainer="sft", project_name="home")  # an empty folder is free
    (tmp_path / "home/letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="no model folder"):
        project(trainer="sft", project_name="home")
    (tmp_path / "home/config.json").write_text("{}")
    project(trainer="sft", project_name="home")
    with pytest.raises(ConfigError, match="no model folder"):
        project(trainer="sft", project_name="home/letter.txt")


def test_missing_data_end_the_run_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="Found no file or folder 'data'"):
        project(trainer="sft").create()
    assert list(tmp_path.iterdir()) == []
