"""TRL trainers small enough to run in a second: a start folder, rows, settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase, Trainer

from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, RewardModelConfig, SFTConfig, StageConfig
from rlcore.scratch import build_model
from tests.support.dpo import COLUMNS, SHAPE
from tests.support.ppo import PROMPTS
from tests.support.tiny import tiny_tokenizer

PAIRS = datasets.Dataset.from_dict(COLUMNS)
DEMONSTRATIONS = PAIRS.select_columns(["prompt", "chosen"]).rename_column("chosen", "response")

_PAIR_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_length": 64,
    "max_prompt_length": 32,
    "logging_steps": 1,
    "eval_every": 3,
    "eval_prompts": 0,
    "save_every": 4,
    "num_epochs": 2,
    "warmup_ratio": 0.0,
}


def start_folder(folder: Path, seed: int = 1, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """A model folder with random weights."""
    tokenizer = tokenizer or tiny_tokenizer()
    build_model(SHAPE, tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def split(rows: datasets.Dataset, train: int, validation: int = 0) -> datasets.DatasetDict:
    """The first rows to train on, the next ones for validation."""
    parts = {"train": rows.select(range(train))}
    if validation:
        parts["validation"] = rows.select(range(train, train + validation))
    return datasets.DatasetDict(parts)


def sft_config(start: Path, **settings: Any) -> SFTConfig:
    small = {"max_steps": 8, "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 0, "save_steps": 4}
    return SFTConfig(model_name=str(start), **{**small, "logging_steps": 1, "max_length": 64, **settings})


def dpo_config(start: Path, **settings: Any) -> DPOConfig:
    return DPOConfig(model_name=str(start), **{**_PAIR_SETTINGS, **settings})


def orpo_config(start: Path, **settings: Any) -> ORPOConfig:
    return ORPOConfig(model_name=str(start), **{**_PAIR_SETTINGS, **settings})


def reward_config(start: Path, **settings: Any) -> RewardModelConfig:
    small = {"learning_rate": 1e-2, "batch_size": 4, "max_length": 64, "num_epochs": 2, "warmup_steps": 0}
    return RewardModelConfig(model_name=str(start), **{**small, "logging_steps": 1, "save_steps": 3, **settings})


def grpo_config(start: Path, **settings: Any) -> GRPOConfig:
    small = {"learning_rate": 3e-3, "batch_size": 16, "mini_batch_size": 8, "grpo_epochs": 2, "max_new_tokens": 6}
    intervals = {"num_iterations": 4, "save_every": 2, "eval_every": 2}
    return GRPOConfig(model_name=str(start), **{**small, **intervals, "kl_penalty_coef": 0.05, **settings})


def grpo_prompts() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"prompt": PROMPTS})


def made_trainer(
    module: Any, config: StageConfig, data: datasets.DatasetDict, folder: Path, **arguments: Any
) -> Trainer:
    """The trainer that a module makes of settings and data, before its first step."""
    made: list[Trainer] = []

    def make_only(make_trainer: Callable[[Path], Trainer], *_: Any, **__: Any) -> None:
        made.append(make_trainer(folder / "checkpoints"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run", make_only)
        module.train(config, data, folder / "model", **arguments)
    return made[0]


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")
