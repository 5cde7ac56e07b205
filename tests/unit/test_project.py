"""A project refuses what it cannot do before it reads or writes anything."""

import pytest

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from rlcore.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def project(process: bool = True, backend: str = "local", **settings) -> AutoTrainProject:
    return AutoTrainProject(LLMTrainingParams(**settings), backend=backend, process=process)


def test_a_project_says_that_it_has_not_run():
    said = repr(project(trainer="sft", model="tiny", project_name="out"))
    assert said == "AutoTrainProject: sft of tiny on data into out. Nothing has run yet: create() trains it."


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
        ({"rl_env_config": {}}, "rl_env_config without an environment"),
        ({"rl_multi_objective": True}, "neither rl_reward_weights nor reward_components"),
        ({"rl_env_type": "multi_objective"}, "neither rl_reward_weights nor reward_components"),
        ({"rl_multi_objective": True, "rl_env_type": "text_generation"}, "Leave one of them out"),
        (
            {"rl_multi_objective": True, "rl_reward_weights": {"default": 1}, "rl_env_config": {"stop_sequences": []}},
            "found no reward_components",
        ),
        (
            {
                "rl_multi_objective": True,
                "rl_reward_weights": {"a": 1},
                "rl_env_config": {"reward_components": {"a": {"type": "length"}}, "reward_weights": {"a": 2}},
            },
            "Leave one of them out",
        ),
        ({"rl_multi_objective": True, "rl_reward_weights": {"reward_model": 1}}, "a weight for reward_model"),
        (
            {"rl_multi_objective": True, "rl_reward_weights": {"default": 1}, "rl_reward_model_path": "reward"},
            "no weight for reward_model",
        ),
        (
            {"rl_multi_objective": True, "rl_reward_weights": {"default": 1}, "rl_reward_fn": "default"},
            "one of several",
        ),
        ({"rl_env_type": "preference_comparison"}, "expected who prefers"),
        (
            {"rl_env_type": "preference_comparison", "rl_reward_fn": "default", "valid_split": "valid"},
            "no checkpoint is better",
        ),
        (
            {"rl_env_type": "text_generation", "rl_env_config": {"temperature": 2}},
            "found temperature, expected stop_seq",
        ),
        (
            {"rl_env_type": "preference_comparison", "rl_env_config": {"max_length": 2}, "rl_reward_fn": "default"},
            "found max_length, expected no setting",
        ),
    ],
)
def test_rewards_that_contradict_each_other_are_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        project(trainer="ppo", model_ref="reference", **settings)


def test_grpo_needs_a_module_and_a_class_or_something_that_scores():
    with pytest.raises(ConfigError, match="rl_env_module='envs' and rl_env_class=None"):
        project(trainer="grpo", rl_env_module="envs")
    with pytest.raises(ConfigError, match="neither rl_env_class nor rl_reward_model_path nor rl_reward_fn"):
        project(trainer="grpo")
    project(trainer="grpo", rl_env_module="envs", rl_env_class="Env")
    project(trainer="grpo", rl_reward_model_path="reward")
    project(trainer="grpo", rl_reward_fn="correctness")


def test_nothing_but_a_model_is_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    project(trainer="sft", project_name="home")  # an empty folder is free
    (tmp_path / "home/letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds neither a model nor a checkpoint"):
        project(trainer="sft", project_name="home")
    (tmp_path / "home/config.json").write_text("{}")
    project(trainer="sft", project_name="home")
    with pytest.raises(CheckpointError, match="found a file"):
        project(trainer="sft", project_name="home/letter.txt")
    with pytest.raises(ConfigError, match="the working directory"):
        project(trainer="sft", project_name=".")


def test_an_adapter_folder_is_a_model_too(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/adapter_config.json").write_text("{}")
    project(trainer="sft", project_name="out")


@pytest.mark.parametrize("name", ["model", "model_ref", "rl_reward_model_path", "data_path"])
def test_an_input_is_not_replaced(tmp_path, name):
    (tmp_path / "it").mkdir()
    (tmp_path / "it/config.json").write_text("{}")
    settings = {"model_ref": "reference", name: str(tmp_path / "it"), "project_name": "./it"}
    with pytest.raises(ConfigError, match=f"that is {name} too"):
        project(trainer="ppo", **settings)


def test_an_implementation_that_there_is_not_is_answered_with_those_that_there_are():
    with pytest.raises(ConfigError, match="implementation='trl': ppo has own alone"):
        project(trainer="ppo", model_ref="reference", implementation="trl")
    with pytest.raises(ConfigError, match="implementation='own': orpo has trl alone"):
        project(trainer="orpo", implementation="own")


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({}, True),  # the documents' 50
        ({"rl_top_k": 0}, False),
        ({"rl_top_k": 0, "rl_top_p": 0.9}, True),
    ],
)
def test_sampling_from_a_part_of_the_distribution_warns(caplog, settings, warns):
    project(trainer="ppo", model_ref="reference", **settings)
    assert sum("off-policy" in message for message in caplog.messages) == warns
    caplog.clear()
    project(trainer="sft")
    assert caplog.messages == []


def test_the_hub_needs_a_name():
    with pytest.raises(ConfigError, match="push_to_hub found no repository"):
        project(trainer="sft", push_to_hub=True)


def test_a_log_that_is_not_there_needs_a_checkout(monkeypatch):
    monkeypatch.setattr("rlcore.cli.run_logs.entry_points", lambda group: [])
    with pytest.raises(ConfigError, match="log='mlflow' needs a checkout"):
        project(trainer="sft", log="mlflow")


def test_missing_data_end_the_run_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="Found no file or folder 'data'"):
        project(trainer="sft").create()
    assert list(tmp_path.iterdir()) == []
