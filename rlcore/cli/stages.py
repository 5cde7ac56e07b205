"""From the documents' vocabulary to the settings of a trainer: one table, field by field."""

import math
from collections.abc import Callable
from typing import Any

from rlcore.backends import backends_of
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
_ROLLOUT = (
    _EVERY
    | _ADAPTERS
    | {
        "epochs": "num_iterations",
        "save_steps": "save_every",
        "block_size": "max_prompt_length",
        "rl_kl_coef": "kl_penalty_coef",
        "rl_clip_range": "clip_ratio",
        "rl_max_new_tokens": "max_new_tokens",
        "rl_top_k": "top_k",
        "rl_top_p": "top_p",
        "rl_temperature": "temperature",
    }
)

STAGE_FIELDS: dict[str, dict[str, str]] = {
    "sft": _EVERY
    | _ROWS
    | _ADAPTERS
    | {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "save_steps": "save_steps"},
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
    "ppo": _ROLLOUT
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
    "grpo": _ROLLOUT
    | {
        "batch_size": "mini_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
        "rl_num_generations": "num_generations",
        "rl_loss_type": "loss_normalization",
        "rl_mask_truncated_completions": "mask_truncated",
        "rl_max_turns": "max_turns",
    },
}
"""Which field of which trainer's settings a field of LLMTrainingParams decides. What it does not name keeps the
trainer's own default."""

_LOSS_NORMALIZATION = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant"}


def implementation_of(params: LLMTrainingParams) -> str:
    """Whose trainer runs, as `rlcore.backends` names it: the one that is asked for, else TRL's where there is one."""
    return params.implementation or ("trl" if "trl" in backends_of(params.stage) else "own")


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


def _sft(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    epoch = _steps_per_epoch(params, row_count)
    steps = params.epochs * epoch
    return {
        "max_steps": steps,
        "warmup_steps": _warmup_steps(params, steps),
        "eval_every": epoch,
        "save_steps": _save_every(params, epoch),
        "lora": _adapters(params),
    }


def _reward(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    epoch = _steps_per_epoch(params, row_count)
    return {
        "warmup_steps": _warmup_steps(params, params.epochs * epoch),
        "save_steps": _save_every(params, epoch),
    }


def _pairs(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    if params.max_prompt_length >= params.block_size:
        raise ConfigError(
            f"max_prompt_length={params.max_prompt_length} leaves no token for the response in "
            f"block_size={params.block_size}. Change one of them."
        )
    epoch = _steps_per_epoch(params, row_count)
    return {"eval_every": epoch, "save_every": _save_every(params, epoch), "lora": _adapters(params)}


def _ppo(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    step_size, responses = params.rl_mini_batch_size, params.rl_chunk_size
    if step_size > responses:
        raise ConfigError(
            f"rl_mini_batch_size={step_size} is larger than rl_chunk_size={responses}. Change one of them."
        )
    if params.rl_env_type == "preference_comparison" and responses % 2:
        raise ConfigError(
            f"rl_chunk_size={responses}: rl_env_type='preference_comparison' answers each prompt twice. Use an even "
            "number."
        )
    backward_size = min(params.batch_size, step_size)
    if step_size % backward_size:
        raise ConfigError(f"batch_size={backward_size} does not divide rl_mini_batch_size={step_size}. Change one.")
    return _rollout(params, row_count, responses) | {
        "mini_batch_size": backward_size,
        "gradient_accumulation_steps": step_size // backward_size,
    }


def _grpo(params: LLMTrainingParams, row_count: int) -> dict[str, Any]:
    responses = params.batch_size * params.gradient_accumulation
    if responses % params.rl_num_generations:
        raise ConfigError(
            f"rl_num_generations={params.rl_num_generations} does not divide batch_size * gradient_accumulation="
            f"{responses}. Change one of them."
        )
    return _rollout(params, row_count * params.rl_num_generations, responses) | {
        "batch_size": responses,
        "loss_normalization": _LOSS_NORMALIZATION[params.rl_loss_type],
    }


def _rollout(params: LLMTrainingParams, responses_per_epoch: int, responses: int) -> dict[str, Any]:
    """What PPO and GRPO compute alike, where an iteration has so many responses."""
    room = params.block_size - params.rl_max_new_tokens
    if room < 1:
        raise ConfigError(
            f"rl_max_new_tokens={params.rl_max_new_tokens} leaves no token for the prompt in block_size="
            f"{params.block_size}. Change one of them."
        )
    epoch = math.ceil(responses_per_epoch / responses)
    return {
        "num_iterations": math.ceil(params.epochs * responses_per_epoch / responses),
        "eval_every": epoch,
        "save_every": _save_every(params, epoch),
        "max_prompt_length": room,
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


def _steps_per_epoch(params: LLMTrainingParams, row_count: int) -> int:
    return math.ceil(math.ceil(row_count / params.batch_size) / params.gradient_accumulation)


def _save_every(params: LLMTrainingParams, steps_per_epoch: int) -> int:
    return params.save_steps if params.save_strategy == "steps" else steps_per_epoch


def _warmup_steps(params: LLMTrainingParams, steps: int) -> int:
    """The share of the steps, rounded up; the last step is never warm-up, whose rate may be 0."""
    return min(math.ceil(params.warmup_ratio * steps), max(steps - 1, 0))


def _adapters(params: LLMTrainingParams) -> dict[str, Any] | None:
    if not params.peft:
        return None
    names = params.target_modules
    targets = names if names == "all-linear" else tuple(name.strip() for name in names.split(","))
    return {"rank": params.lora_r, "alpha": params.lora_alpha, "target_modules": targets}
