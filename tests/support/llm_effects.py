"""For each accepted flag of `rlhf llm --train`: a value, and what of the trainer's call it changes.

`{model}`, `{other}` and `{reward}` stand for folders: two policies and a reward model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rlcore.cli.flags import flag_of
from rlcore.cli.stages import STAGE_FIELDS
from tests.support.llm import Call


class Effect(NamedTuple):
    """What a flag changes in the call of a trainer."""

    flag: str
    trainer: str
    given: tuple[str, ...]
    """Further flags, on both sides of the comparison."""
    changed: tuple[str, ...]
    """What is given on one side."""
    seen: Callable[[Call], Any]
    """The named part of the call that differs."""


BASE = {
    "sft": ("--text-column", "chosen"),
    "reward": (),
    "dpo": (),
    "orpo": (),
    "ppo": ("--model-ref", "{model}", "--rl-chunk-size", "8", "--rl-max-new-tokens", "8"),
    "grpo": ("--rl-reward-fn", "default", "--rl-max-new-tokens", "8"),
}
"""Flags without which a trainer does not start."""

ENVIRONMENT = ("--rl-env-module", "my_envs.hotel_env", "--rl-env-class", "HotelEnv")

VALUES = {
    "model": "{other}", "seed": "3", "lr": "0.1", "weight_decay": "0.5", "max_grad_norm": "3", "block_size": "512",
    "batch_size": "4", "gradient_accumulation": "2", "logging_steps": "3", "epochs": "5", "warmup_ratio": "0.9",
    "save_steps": "3", "peft": "true", "lora_r": "3", "lora_alpha": "3", "lora_dropout": "0.5",
    "target_modules": "q_proj,v_proj", "max_prompt_length": "32", "dpo_beta": "0.5", "rl_kl_coef": "0.3",
    "rl_clip_range": "0.3", "rl_max_new_tokens": "4", "rl_top_k": "0", "rl_top_p": "0.5", "rl_temperature": "0.5",
    "rl_chunk_size": "16", "rl_mini_batch_size": "4", "rl_num_ppo_epochs": "2", "rl_gamma": "0.9",
    "rl_gae_lambda": "0.9", "rl_value_loss_coef": "0.5", "rl_value_clip_range": "none", "rl_num_generations": "2",
    "rl_loss_type": "dapo", "rl_mask_truncated_completions": "true",
}  # fmt: skip
"""Another value than the default, for each field that becomes a setting of a trainer."""

NEEDED = {
    "warmup_ratio": ("--epochs", "5"),
    "save_steps": ("--save-strategy", "steps"),
    "lora_r": ("--peft",),
    "lora_alpha": ("--peft",),
    "lora_dropout": ("--peft",),
    "target_modules": ("--peft",),
}
"""Without which a field is idle, or changes nothing of so few rows."""


def setting(target: str) -> Callable[[Call], Any]:
    """A setting of the trainer; of adapters as a whole."""
    return lambda call: getattr(call.config, target.partition(".")[0])


def of_settings() -> list[Effect]:
    """Every field of every trainer that becomes one of its settings."""
    return [
        Effect(flag_of(name), stage, NEEDED.get(name, ()), (flag_of(name), VALUES[name]), setting(target))
        for stage, fields in STAGE_FIELDS.items()
        for name, target in fields.items()
        if name in VALUES
    ]


def prompts(call: Call) -> list[Any]:
    """The prompts to train on."""
    return list(call.data["train"]["prompt"])


def scores(call: Call) -> list[float]:
    """What the reward source says about some answers."""
    asked = ["Say 3.", "Say 3.", "Say 4."]
    answers = ["three words: 3", "The answer is 3 STOP and many more words", "no"]
    return list(call.judges["reward"](asked, answers, [{"answer": "3"}, {"answer": "3"}, {"answer": "4"}]))


COMPONENTS = '{"reward_components": {"length": {"type": "length"}, "no": {"type": "keyword", "keywords": ["no"]}}}'
SUM = ("--rl-reward-weights", '{"default": 1, "correctness": 1}')

OF_THE_PROJECT = [
    Effect("--trainer", "dpo", (), ("--trainer", "orpo"), lambda call: call.stage),
    Effect("--implementation", "dpo", (), ("--implementation", "own"), lambda call: call.implementation),
    Effect("--data-path", "dpo", (), ("--data-path", "more.jsonl"), prompts),
    Effect("--train-split", "dpo", (), ("--train-split", "valid"), prompts),
    Effect("--valid-split", "dpo", (), ("--valid-split", "train"), lambda call: len(call.data["validation"])),
    Effect("--eval-strategy", "dpo", (), ("--eval-strategy", "no"), lambda call: list(call.data)),
    Effect("--max-samples", "dpo", (), ("--max-samples", "3"), prompts),
    Effect("--project-name", "dpo", (), ("--project-name", "elsewhere"), lambda call: call.output_dir),
    Effect("--text-column", "dpo", (), ("--text-column", "answer"), lambda call: call.data["train"]["chosen"]),
    Effect("--prompt-text-column", "dpo", (), ("--prompt-text-column", "answer"), prompts),
    Effect(
        "--rejected-text-column", "dpo", (), ("--rejected-text-column", "answer"),
        lambda call: call.data["train"]["rejected"],
    ),
    Effect("--column-mapping", "ppo", (), ("--column-mapping", '{"answer": "chosen"}'),
           lambda call: call.data["train"]["answer"]),
    Effect("--save-strategy", "dpo", (), ("--save-strategy", "no"), lambda call: call.resume_dir),
    Effect("--resume-from-checkpoint", "dpo", (), ("--resume-from-checkpoint", "kept"), lambda call: call.resume_dir),
    Effect("--model-ref", "ppo", ("--reward-model", "{reward}"), ("--model-ref", "{other}"),
           lambda call: call.judges["reference"]),
    Effect("--model-ref", "grpo", ("--implementation", "own"), ("--model-ref", "{other}"),
           lambda call: call.judges.get("reference")),
    Effect("--rl-reward-model-path", "ppo", (), ("--rl-reward-model-path", "{reward}"), scores),
    Effect("--rl-reward-fn", "ppo", (), ("--rl-reward-fn", "correctness"), scores),
    Effect("--rl-multi-objective", "ppo", (), ("--rl-multi-objective", *SUM), scores),
    Effect("--rl-reward-weights", "ppo", ("--rl-multi-objective", *SUM),
           ("--rl-reward-weights", '{"default": 1, "correctness": 9}'), scores),
    Effect("--rl-env-type", "ppo", (),
           ("--rl-env-type", "text_generation", "--rl-env-config", '{"stop_sequences": ["STOP"]}'), scores),
    Effect("--rl-env-type", "ppo", ("--rl-reward-fn", "length_penalty"),
           ("--rl-env-type", "preference_comparison"), lambda call: call.judges["reward"].__name__),
    Effect("--rl-env-type", "ppo", (), ("--rl-env-type", "multi_objective", *SUM), scores),
    Effect("--rl-env-config", "ppo", ("--rl-env-type", "text_generation"),
           ("--rl-env-config", '{"stop_sequences": ["STOP"]}'), scores),
    Effect("--rl-env-config", "ppo", ("--rl-multi-objective", *SUM[:1], '{"length": 9}', "--rl-env-config", COMPONENTS),
           ("--rl-env-config", COMPONENTS.replace("[\"no\"]", "[\"words\"]")), scores),
]  # fmt: skip

OF_AN_ENVIRONMENT = [
    Effect("--rl-env-module", "grpo", ENVIRONMENT, ("--rl-env-module", "other_envs"),
           lambda call: type(call.judges["environment"]).__module__),
    Effect("--rl-env-class", "grpo", (*ENVIRONMENT, "--rl-env-module", "other_envs"), ("--rl-env-class", "Inn"),
           lambda call: type(call.judges["environment"]).__name__),
    Effect("--rl-env-config", "grpo", ENVIRONMENT, ("--rl-env-config", '{"guests": 3}'), prompts),
    Effect("--rl-max-turns", "grpo", ENVIRONMENT, ("--rl-max-turns", "2"), setting("max_turns")),
]  # fmt: skip

OF_THE_RESULT = {
    "--merge-adapter", "--log", "--push-to-hub", "--repo-id", "--username", "--hub-private", "--token",
    "--silence",
}  # fmt: skip
"""Flags about what is done beside training; each has a test of its own."""

EFFECTS = [*of_settings(), *OF_THE_PROJECT, *OF_AN_ENVIRONMENT]
