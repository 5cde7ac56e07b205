"""From the documents' vocabulary to the settings of a trainer: one table, field by field."""

import math
from collections.abc import Callable
from typing import Any

from rlcore.cli.params import LLMTrainingParams
from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, PPOConfig, RewardModelConfig, SFTConfig, StageConfig
from rlcore.errors import ConfigError
from rlcore.sections import build_config

CONFIGS: dict[str, type[StageConfig]] = {
    "sft": SFTConfig,
    "reward": RewardModelConfig,
    "ppo": PPOConfig,
    "grpo": GRPOConfig,
    "dpo": DPOConfig,
    "orpo": ORPOConfig,
}

_EVERY = {
    "model": "model_name",
    "seed": "seed",
    "lr": "learning_rate",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
}
_ROWS = {
    "block_size": "max_length",
    "batch_size": "batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "logging_steps": "logging_steps",
}
_ADAPTERS = {"peft": "lora", "lora_r": "lora.rank", "lora_alpha": "lora.alpha", "target_modules": "lora.target_modules"}
_PAIRS = (
    _EVERY
    | _ROWS
    | _ADAPTERS
    | {
        "epochs": "num_epochs",
        "warmup_ratio": "warmup_ratio",
        "save_steps": "save_every",
        "max_prompt_length": "max_prompt_length",
        "dpo_beta": "beta",
    }
)
_ROLLOUT = {
    "epochs": "num_iterations",
    "save_steps": "save_every",
    "rl_kl_coef": "kl_penalty_coef",
    "rl_clip_range": "clip_ratio",
    "rl_max_new_tokens": "max_new_tokens",
    "rl_top_k": "top_k",
    "rl_top_p": "top_p",
    "rl_temperature": "temperature",
}

STAGE_FIELDS: dict[str, dict[str, str]] = {
    "sft": _EVERY | _ROWS | {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "save_steps": "save_steps"},
    "reward": _EVERY
    | _ROWS
    | {
        "epochs": "num_epochs",
        "warmup_ratio": "warmup_steps",
        "save_steps": "save_steps",
        "peft": "use_lora",
        "lora_r": "lora_rank",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
    },
    "dpo": _PAIRS,
    "orpo": _PAIRS,
    "ppo": _EVERY
    | _ROLLOUT
    | _ADAPTERS
    | {
        "batch_size": "mini_batch_size",
        "rl_chunk_size": "batch_size",
        "rl_mini_batch_size": "gradient_accumulation_steps",
        "rl_num_ppo_epochs": "ppo_epochs",
        "rl_gamma": "gamma",
        "rl_gae_lambda": "lam",
        "rl_value_loss_coef": "value_coef",
        "rl_value_clip_range": "value_clip",
    },
    "grpo": _EVERY
    | _ROLLOUT
    | _ADAPTERS
    | {
        "batch_size": "mini_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
        "rl_num_generations": "num_generations",
        "rl_loss_type": "loss_normalization",
        "rl_mask_truncated_completions": "mask_truncated",
    },
}
"""Which field of which trainer's settings a field of LLMTrainingParams decides. What it does not name keeps the
trainer's own default."""

_ANY_PROJECT = {"trainer", "project_name", "max_samples", "resume_from_checkpoint"}
_ANY_FILE = {"data_path", "train_split", "valid_split", "text_column"}
_PAIR_COLUMNS = {"prompt_text_column", "rejected_text_column"}
PROJECT_FIELDS: dict[str, set[str]] = {
    "sft": _ANY_PROJECT | _ANY_FILE | {"prompt_text_column"},
    "reward": _ANY_PROJECT | _ANY_FILE | _PAIR_COLUMNS,
    "dpo": _ANY_PROJECT | _ANY_FILE | _PAIR_COLUMNS | {"model_ref"},
    "orpo": _ANY_PROJECT | _ANY_FILE | _PAIR_COLUMNS,
    "ppo": _ANY_PROJECT
    | _ANY_FILE
    | {"model_ref", "rl_reward_model_path", "rl_reward_fn", "rl_multi_objective", "rl_reward_weights"}
    | {"rl_env_type", "rl_env_config"},
    "grpo": _ANY_PROJECT | {"model_ref", "rl_env_module", "rl_env_class", "rl_env_config"},
}
"""What AutoTrainProject itself reads, for each trainer."""

_LOSS_NORMALIZATION = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant"}
_REASONS = {
    ("ppo", "gradient_accumulation"): "rl_mini_batch_size responses make an optimiser step",
    ("ppo", "lora_dropout"): "the policy is trained without dropout",
    ("ppo", "rl_optimize_device_cache"): "it is always done",
}


def unread_fields(params: LLMTrainingParams) -> dict[str, str]:
    """The fields that are set to something and that the trainer does not read, each with the reason."""
    stage = params.stage
    read = PROJECT_FIELDS[stage] | set(STAGE_FIELDS[stage])
    idle = _idle_fields(params)
    changed = (
        name
        for name, field in LLMTrainingParams.model_fields.items()
        if (name not in read or name in idle) and getattr(params, name) != field.default
    )
    return {name: _REASONS.get((stage, name)) or idle.get(name) or _readers(name) for name in changed}


def stage_config(params: LLMTrainingParams, row_count: int) -> StageConfig:
    """The settings of the trainer, every one of the table from params and none from the trainer's own defaults.

    Args:
        params: settings in the documents' vocabulary.
        row_count: rows to train on; epochs become steps or iterations with it.

    Raises:
        ConfigError: a value is out of the trainer's range, or two contradict each other.
    """
    stage = params.stage
    known = CONFIGS[stage].model_fields
    settings = {target: getattr(params, name) for name, target in STAGE_FIELDS[stage].items() if target in known}
    return build_config(CONFIGS[stage], stage, settings | _COMPUTED[stage](params, row_count))


def _idle_fields(params: LLMTrainingParams) -> dict[str, str]:
    """Fields that another setting has switched off, and that setting."""
    idle: dict[str, str] = {}
    if not params.peft:
        idle |= dict.fromkeys(("lora_r", "lora_alpha", "lora_dropout", "target_modules"), "it needs peft=True")
    if params.resume_from_checkpoint is None:
        idle["save_steps"] = "it needs resume_from_checkpoint, the folder for checkpoints"
    return idle


def _sft(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    steps = _optimiser_steps(params, row_count)
    return {"max_steps": steps, "warmup_steps": _warmup_steps(params, steps)}


def _reward(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    return {"warmup_steps": _warmup_steps(params, _optimiser_steps(params, row_count))}


def _pairs(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    if params.max_prompt_length >= params.block_size:
        raise ConfigError(
            f"max_prompt_length={params.max_prompt_length} leaves no token for the response in "
            f"block_size={params.block_size}. Change one of them."
        )
    return {"lora": _adapters(params)}


def _ppo(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    step_size = params.rl_mini_batch_size
    if step_size > params.rl_chunk_size:
        raise ConfigError(
            f"rl_mini_batch_size={step_size} is larger than rl_chunk_size={params.rl_chunk_size}. Change one of them."
        )
    backward_size = min(params.batch_size, step_size)
    if step_size % backward_size:
        raise ConfigError(f"batch_size={backward_size} does not divide rl_mini_batch_size={step_size}. Change one.")
    return {
        "mini_batch_size": backward_size,
        "gradient_accumulation_steps": step_size // backward_size,
        "num_iterations": math.ceil(params.epochs * row_count / params.rl_chunk_size),
        "lora": _adapters(params),
    }


def _grpo(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    responses = params.batch_size * params.gradient_accumulation
    if responses % params.rl_num_generations:
        raise ConfigError(
            f"rl_num_generations={params.rl_num_generations} does not divide batch_size * gradient_accumulation="
            f"{responses}. Change one of them."
        )
    return {
        "batch_size": responses,
        "num_iterations": math.ceil(params.epochs * row_count * params.rl_num_generations / responses),
        "loss_normalization": _LOSS_NORMALIZATION[params.rl_loss_type],
        "lora": _adapters(params),
    }


_COMPUTED: dict[str, Callable[[LLMTrainingParams, int], dict[str, Any]]] = {
    "sft": _sft,
    "reward": _reward,
    "dpo": _pairs,
    "orpo": _pairs,
    "ppo": _ppo,
    "grpo": _grpo,
}


def _optimiser_steps(params: LLMTrainingParams, row_count: int) -> int:
    batches = math.ceil(row_count / params.batch_size)
    return params.epochs * math.ceil(batches / params.gradient_accumulation)


def _warmup_steps(params: LLMTrainingParams, steps: int) -> int:
    """The share of the steps, rounded up; the last step is never warm-up, whose rate may be 0."""
    return min(math.ceil(params.warmup_ratio * steps), max(steps - 1, 0))


def _adapters(params: LLMTrainingParams) -> dict[str, Any] | None:
    if not params.peft:
        return None
    names = params.target_modules
    targets = names if names == "all-linear" else tuple(name.strip() for name in names.split(","))
    return {"rank": params.lora_r, "alpha": params.lora_alpha, "target_modules": targets}


def _readers(name: str) -> str:
    readers = [stage for stage in STAGE_FIELDS if name in STAGE_FIELDS[stage] or name in PROJECT_FIELDS[stage]]
    return f"it is for {', '.join(readers)}" if readers else "no trainer reads it"
