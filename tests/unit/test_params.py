"""The documents' settings: bounds, recommended ranges, and the table from them to a trainer's settings."""

import pytest

from rlcore.cli.not_offered import NOT_OFFERED, REFUSED_VALUES
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.readers import PROJECT_FIELDS, readers_of, unread_fields
from rlcore.cli.stages import CONFIGS, STAGE_FIELDS, implementation_of, stage_config
from rlcore.configs import (
    DPOConfig,
    GRPOConfig,
    LoraConfig,
    ORPOConfig,
    PPOConfig,
    RewardModelConfig,
    SFTConfig,
    recommended_ranges,
)
from rlcore.errors import ConfigError

STAGES = sorted(STAGE_FIELDS)


def params(trainer: str = "ppo", **settings) -> LLMTrainingParams:
    return LLMTrainingParams(trainer=trainer, model="tiny", **settings)


CHANGED = {
    "model": "other", "data_path": "other", "project_name": "other", "train_split": "other", "valid_split": "other",
    "max_samples": 3, "seed": 3, "peft": True, "lora_r": 3, "resume_from_checkpoint": "auto", "save_steps": 3,
    "implementation": "own", "column_mapping": {"answer": "other"}, "eval_strategy": "no", "log": "mlflow",
    "save_strategy": "steps", "merge_adapter": False, "rl_max_turns": 2, "push_to_hub": True, "repo_id": "me/it",
    "silence": ("kl_limit",), "username": "me", "hub_private": False, "token": "secret",
    "text_column": "other", "prompt_text_column": "other",
    "rejected_text_column": "other", "block_size": 512, "max_prompt_length": 32, "lr": 1e-3, "epochs": 3,
    "batch_size": 4, "gradient_accumulation": 3, "warmup_ratio": 0.5, "weight_decay": 0.5, "max_grad_norm": 3.0,
    "logging_steps": 3, "lora_alpha": 3.0, "lora_dropout": 0.5, "target_modules": "q_proj", "model_ref": "other",
    "dpo_beta": 0.5, "rl_reward_model_path": "other", "rl_gamma": 0.9, "rl_gae_lambda": 0.9, "rl_kl_coef": 0.3,
    "rl_value_loss_coef": 0.5, "rl_clip_range": 0.3, "rl_value_clip_range": 0.3, "rl_num_ppo_epochs": 3,
    "rl_chunk_size": 64, "rl_mini_batch_size": 4, "rl_max_new_tokens": 3,
    "rl_top_k": 3, "rl_top_p": 0.5, "rl_temperature": 0.5, "rl_reward_fn": "default", "rl_multi_objective": True,
    "rl_reward_weights": {"default": 1.0}, "rl_env_type": "multi_objective", "rl_env_config": {},
    "rl_env_module": "other", "rl_env_class": "Other", "rl_num_generations": 2, "rl_loss_type": "dapo",
    "rl_mask_truncated_completions": True,
}  # fmt: skip
"""Another value than the default for each field."""

NEEDED = {
    "peft": True, "save_strategy": "steps", "push_to_hub": True, "rl_env_module": "other", "rl_env_class": "Other",
}  # fmt: skip
"""What other fields need to be read."""

OUTSIDE = {
    "rl_gamma": (0.8, 1.0),
    "rl_gae_lambda": (0.8, 1.0),
    "rl_kl_coef": (0.0, 0.6),
    "rl_value_loss_coef": (0.4, 2.5),
    "rl_clip_range": (0.05, 0.4),
}
"""Possible values below and above the recommended ranges."""


def test_these_fields_have_a_recommended_range():
    assert dict(recommended_ranges(LLMTrainingParams)).keys() == OUTSIDE.keys()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OUTSIDE.items() for value in values])
def test_a_value_outside_the_recommended_range_is_used_and_seen_as_such(name, value):
    used = getattr(params(**{name: value}), name)
    assert used == value
    assert used not in dict(recommended_ranges(LLMTrainingParams))[name]


@pytest.mark.parametrize(("name", "recommended"), recommended_ranges(LLMTrainingParams))
def test_the_ends_of_a_range_belong_to_it_and_stand_in_the_docstring(name, recommended):
    assert recommended.low in recommended
    assert recommended.high in recommended
    assert str(LLMTrainingParams.model_fields[name].description).endswith(f"Recommended: {recommended}.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rl_gamma", 1.1),
        ("rl_gae_lambda", -0.1),
        ("rl_kl_coef", -1),
        ("rl_value_loss_coef", -1),
        ("rl_clip_range", 0),
        ("rl_value_clip_range", 0),
        ("rl_chunk_size", 0),
        ("rl_top_p", 0),
        ("rl_temperature", 0),
        ("lr", 0),
        ("epochs", -1),
        ("trainer", "distillation"),
        ("rl_env_type", "chess"),
        ("rl_gama", 0.99),
        ("lr", float("nan")),
    ],
)
def test_an_impossible_value_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        LLMTrainingParams(**{name: value})


def test_every_field_says_what_it_means():
    assert [name for name, field in LLMTrainingParams.model_fields.items() if not field.description] == []


def test_objects_may_come_as_json():
    given = params(rl_reward_weights='{"correctness": 1.0, "formatting": 0.1}', rl_env_config={"a": [1]})
    assert given.rl_reward_weights == {"correctness": 1.0, "formatting": 0.1}
    assert given.rl_env_config == {"a": [1]}
    with pytest.raises(ConfigError, match="expected a JSON object"):
        params(rl_reward_weights="correctness=1")
    with pytest.raises(ConfigError, match="valid dictionary"):
        params(rl_env_config="[1]")


def test_what_is_not_offered_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"use_vllm=True is not offered: responses are sampled by this library"):
        params(use_vllm=True)


def test_the_value_that_says_what_happens_anyway_is_let_through_also_as_text():
    same = {"use_vllm": False, "rl_optimize_device_cache": "true", "distill_temperature": "3.0", "quantization": None}
    assert params(**same, padding="right", chat_template="tokenizer") == params()


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("log", "wandb", "Use mlflow, or none"),
        ("rl_loss_type", "cispo", "Use grpo, dapo or dr_grpo"),
        ("trainer", "distillation", "Use sft"),
        ("eval_strategy", "steps", "Use epoch or no"),
    ],
)
def test_a_value_that_nothing_answers_to_is_refused_with_what_to_do(name, value, advice):
    with pytest.raises(ConfigError, match=f"{name}='{value}' is not offered: .*{advice}"):
        LLMTrainingParams(**{name: value})
    assert value in REFUSED_VALUES[name]


def test_a_field_is_offered_or_it_is_not():
    assert set(NOT_OFFERED).isdisjoint(LLMTrainingParams.model_fields)


def test_an_access_token_is_not_printed():
    assert "secret" not in repr(params(push_to_hub=True, repo_id="me/it", token="secret"))


@pytest.mark.parametrize("stage", STAGES)
def test_the_table_leads_to_fields_that_the_trainer_has(stage):
    known = CONFIGS[stage].model_fields
    for name, target in STAGE_FIELDS[stage].items():
        assert name in LLMTrainingParams.model_fields
        field, _, inner = target.partition(".")
        assert field in known
        assert not inner or inner in LoraConfig.model_fields
    assert set(STAGE_FIELDS[stage]).isdisjoint(PROJECT_FIELDS[stage])
    targets = list(STAGE_FIELDS[stage].values())
    assert len(targets) == len(set(targets))


def test_the_table_is_total():
    assert [name for name in LLMTrainingParams.model_fields if not readers_of(name)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_field_that_the_trainer_does_not_read_is_refused_when_it_is_changed(stage):
    read = {*STAGE_FIELDS[stage], *PROJECT_FIELDS[stage]}
    unread = set(unread_fields(LLMTrainingParams(**CHANGED | {"trainer": stage})))
    assert set(CHANGED) - read <= unread
    assert set(LLMTrainingParams.model_fields) - set(CHANGED) == {"trainer", "rl_optimize_device_cache"}
    assert unread_fields(params(stage)) == {}


@pytest.mark.parametrize("stage", STAGES)
def test_every_reader_reads_a_field_under_some_other_settings(stage):
    """None is idle whatever the others say."""
    everything = {
        name: value
        for name, value in (CHANGED | NEEDED).items()
        if stage in readers_of(name) and (stage != "grpo" or name not in ("rl_env_module", "rl_env_class"))
    }
    of_files = set(unread_fields(LLMTrainingParams(**everything | {"trainer": stage, "repo_id": None})))
    of_environment = set(unread_fields(LLMTrainingParams(**everything | NEEDED | {"trainer": stage, "username": None})))
    # eval_strategy="no" switches valid_split off, and no environment the number of turns
    assert of_files <= {"valid_split", "rl_max_turns"}
    assert "rl_max_turns" not in of_environment


@pytest.mark.parametrize(
    ("trainer", "idle", "reason", "needed"),
    [
        ("ppo", {"lora_r": 8}, "it needs peft=True", {"peft": True}),
        ("ppo", {"merge_adapter": False}, "it needs peft=True", {"peft": True}),
        ("dpo", {"save_steps": 8}, "it needs save_strategy='steps'", {"save_strategy": "steps"}),
        ("dpo", {"repo_id": "me/it"}, "it needs push_to_hub=True", {"push_to_hub": True}),
        ("grpo", {"rl_max_turns": 2}, "it needs rl_env_class", {"rl_env_module": "m", "rl_env_class": "C"}),
        ("grpo", {"model_ref": "it"}, "TRL's GRPO takes the model itself as its reference; set implementation='own'",
         {"implementation": "own"}),
    ],
)  # fmt: skip
def test_a_field_that_another_one_has_switched_off_is_refused(trainer, idle, reason, needed):
    assert unread_fields(params(trainer, **idle)) == dict.fromkeys(idle, reason)
    assert unread_fields(params(trainer, **idle, **needed)) == {}


@pytest.mark.parametrize(
    ("switched_off", "name"),
    [
        ({"save_strategy": "no", "resume_from_checkpoint": "auto"}, "resume_from_checkpoint"),
        ({"eval_strategy": "no", "valid_split": "valid"}, "valid_split"),
        ({"push_to_hub": True, "repo_id": "me/it", "username": "me"}, "username"),
    ],
)
def test_settings_that_switch_each_other_off_are_refused(switched_off, name):
    assert list(unread_fields(params("dpo", **switched_off))) == [name]


def test_an_environment_takes_over_prompts_and_scores():
    environment = {"rl_env_module": "m", "rl_env_class": "C"}
    given = params("grpo", data_path="other", rl_reward_fn="default", rl_env_config={"rooms": 3}, **environment)
    assert set(unread_fields(given)) == {"data_path", "rl_reward_fn"}


def test_the_reason_says_who_reads_a_field():
    assert unread_fields(params("dpo", rl_gamma=0.9)) == {"rl_gamma": "it is for ppo"}
    assert unread_fields(params("sft", peft=True, lora_dropout=0.5)) == {
        "lora_dropout": "policies are trained without dropout"
    }
    assert unread_fields(params("sft", dpo_beta=0.5)) == {"dpo_beta": "it is for dpo, orpo"}


@pytest.mark.parametrize(("stage", "name"), [(stage, name) for stage in STAGES for name in STAGE_FIELDS[stage]])
def test_each_field_of_the_table_changes_the_settings_of_the_trainer(stage, name):
    base = {"trainer": stage, "peft": True, "save_strategy": "steps", "rl_env_module": "m", "rl_env_class": "C"}
    value = {"peft": False, "gradient_accumulation": 2}.get(name, CHANGED[name])
    before, after = (stage_config(LLMTrainingParams(**base | more), 100) for more in ({}, {name: value}))
    field = STAGE_FIELDS[stage][name].partition(".")[0]
    assert getattr(after, field) != getattr(before, field)


def test_the_defaults_of_the_two_vocabularies_are_never_mixed():
    config = stage_config(params("ppo"), 100)
    assert isinstance(config, PPOConfig)
    # the documents' own defaults, not those of PPOConfig: 0.01, 0.5, 0.7, 0.9, 0
    assert (config.kl_penalty_coef, config.value_coef, config.temperature, config.top_p, config.top_k) == (
        0.1, 1.0, 1.0, 1.0, 50,
    )  # fmt: skip
    dpo = stage_config(params("dpo"), 100)
    assert isinstance(dpo, DPOConfig)
    assert (dpo.learning_rate, dpo.max_length, dpo.max_prompt_length, dpo.seed) == (3e-5, 1024, 128, 42)


def test_ppo_sizes():
    # 300 prompts, 128 responses an iteration: 2.34 iterations an epoch; 8 responses a step in backward passes of 4
    config = stage_config(params("ppo", epochs=2, batch_size=4), 300)
    assert isinstance(config, PPOConfig)
    sizes = (config.batch_size, config.mini_batch_size, config.gradient_accumulation_steps, config.num_iterations)
    assert sizes == (128, 4, 2, 5)
    # a backward pass never holds more than a step
    wide = stage_config(params("ppo", batch_size=64), 300)
    assert isinstance(wide, PPOConfig)
    assert (wide.mini_batch_size, wide.gradient_accumulation_steps) == (8, 1)


def test_steps_of_the_supervised_trainers():
    # 100 rows, 2 a batch: 50 batches; 4 batches a step: 13 steps an epoch, 39 in all; a tenth of them is 3.9
    sft, reward = (stage_config(params(stage, epochs=3), 100) for stage in ("sft", "reward"))
    assert isinstance(sft, SFTConfig)
    assert isinstance(reward, RewardModelConfig)
    assert (sft.max_steps, sft.warmup_steps) == (39, 4)
    assert (reward.num_epochs, reward.warmup_steps, reward.use_lora) == (3, 4, False)


def test_grpo_sizes():
    # 2 * 4 responses an iteration, 4 to a prompt: 2 prompts; 5 prompts are 2.5 iterations
    config = stage_config(params("grpo"), 5)
    assert isinstance(config, GRPOConfig)
    assert (config.batch_size, config.mini_batch_size, config.num_iterations) == (8, 2, 3)
    assert config.loss_normalization == "sequence"


def test_rows_are_measured_and_checkpoints_written_after_each_epoch():
    # 100 rows are 13 optimiser steps of 8; 300 prompts are 2.34 iterations of 128 responses, so 3
    for stage in ("dpo", "orpo"):
        config = stage_config(params(stage), 100).model_dump()
        assert (config["eval_every"], config["save_every"]) == (13, 13)
    sft = stage_config(params("sft"), 100).model_dump()
    assert (sft["eval_every"], sft["save_steps"]) == (13, 13)
    assert stage_config(params("reward"), 100).model_dump()["save_steps"] == 13
    ppo = stage_config(params("ppo"), 300).model_dump()
    assert (ppo["eval_every"], ppo["save_every"]) == (3, 3)
    steps = stage_config(params("ppo", save_strategy="steps", save_steps=7), 300).model_dump()
    assert (steps["eval_every"], steps["save_every"]) == (3, 7)


def test_prompt_and_response_share_a_block():
    # 1024 tokens, of which a response may take 128
    assert stage_config(params("ppo"), 100).model_dump()["max_prompt_length"] == 896
    assert stage_config(params("grpo", rl_max_new_tokens=24), 100).model_dump()["max_prompt_length"] == 1000


def test_trl_trains_what_it_has_a_trainer_for_and_whoever_is_named():
    assert {stage: implementation_of(params(stage)) for stage in STAGES} == {
        "sft": "trl", "reward": "trl", "ppo": "own", "grpo": "trl", "dpo": "trl", "orpo": "trl"
    }  # fmt: skip
    assert implementation_of(params("dpo", implementation="own")) == "own"


def test_adapters():
    config = stage_config(params("orpo", peft=True, target_modules="q_proj, v_proj"), 5)
    assert isinstance(config, ORPOConfig)
    assert config.lora == LoraConfig(rank=16, alpha=32, target_modules=("q_proj", "v_proj"))


@pytest.mark.parametrize(
    ("trainer", "settings", "named"),
    [
        ("ppo", {"rl_chunk_size": 4}, "rl_mini_batch_size=8 is larger than rl_chunk_size=4"),
        ("ppo", {"batch_size": 3}, "batch_size=3 does not divide rl_mini_batch_size=8"),
        ("grpo", {"rl_num_generations": 3}, "rl_num_generations=3 does not divide"),
        ("ppo", {"block_size": 128}, "rl_max_new_tokens=128 leaves no token"),
        ("ppo", {"rl_chunk_size": 9, "rl_env_type": "preference_comparison"}, "rl_chunk_size=9.* answers each prompt"),
        ("dpo", {"block_size": 128}, "max_prompt_length=128 leaves no token"),
    ],
)
def test_settings_that_contradict_each_other_are_named(trainer, settings, named):
    with pytest.raises(ConfigError, match=named):
        stage_config(params(trainer, **settings), 100)
