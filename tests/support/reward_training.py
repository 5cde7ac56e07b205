"""A reward model small enough to train in a second, pairs that it can separate, and traces of what it reports."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from rlcore.configs import RewardModelConfig, ScratchModelConfig
from rlcore.reward import objective
from rlcore.scratch import build_model, train_tokenizer

PROMPTS = [f"Say {number}." for number in range(14)]
GOOD, BAD = "Gladly.", "No."
COLUMNS = {"prompt": PROMPTS, "chosen": [GOOD] * 14, "rejected": [BAD] * 14}


class Trace:
    """Keeps what a trainer reports; the last value of a step and name counts."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(metrics)


class Stop(Exception):
    """Stands for whatever ends a run in the middle."""


def stop_at(trace: Trace, step: int) -> Callable[[int, Mapping[str, float]], None]:
    """A sink that ends the run when it reports that step."""

    def on_metrics(at: int, metrics: Mapping[str, float]) -> None:
        if at == step:
            raise Stop
        trace(at, metrics)

    return on_metrics


def save_start(folder: Path) -> Path:
    """Write a small causal language model, and its tokenizer, into the folder."""
    tokenizer = train_tokenizer([f"{prompt} {GOOD} {BAD}" for prompt in PROMPTS], 280)
    shape = ScratchModelConfig(vocab_size=280, hidden_size=16, num_layers=2, intermediate_size=16, max_positions=64)
    build_model(shape, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(start: Path, **changes: Any) -> RewardModelConfig:
    """Settings of a run of 14 steps on the 14 pairs, with dropout."""
    values: dict[str, Any] = {
        "model_name": str(start),
        "batch_size": 2,
        "num_epochs": 2,
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "dropout_prob": 0.2,
        "max_length": 32,
        "save_steps": 3,
        "logging_steps": 2,
    }
    return RewardModelConfig(**values | changes)


def pairs(*splits: str) -> datasets.DatasetDict:
    """The pairs as the split train, and as the others that are named."""
    return datasets.DatasetDict({split: datasets.Dataset.from_dict(COLUMNS) for split in ("train", *splits)})


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """All files of a folder and of those in it, by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plant_nan(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """Make the loss of some micro-batches NaN, counted from 0. Each is asked for twice: to learn and to report."""
    loss, asked = objective.bradley_terry_loss, []

    def planted(chosen: torch.Tensor, rejected: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append(1)
        value = loss(chosen, rejected, **options)
        return value * math.nan if (len(asked) - 1) // 2 in calls else value

    monkeypatch.setattr(objective, "bradley_terry_loss", planted)
