"""A preference trainer small enough to run in a second, and pairs that it can separate."""

from typing import Any

import torch

from rlcore.configs import DPOConfig, ScratchModelConfig
from rlcore.dpo import DPOTrainer, PreferenceDataset
from rlcore.scratch import build_model
from tests.support.tiny import tiny_tokenizer

SHAPE = ScratchModelConfig(vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
SUMS = [(a, b) for a in range(4) for b in range(5)]
COLUMNS = {
    "prompt": [f"What is {a} plus {b}?" for a, b in SUMS],
    "chosen": [f"The answer is {a + b}." for a, b in SUMS],
    "rejected": ["Sure!" if a % 2 else f"I think it is {a + b}, maybe." for a, b in SUMS],
}
SWAPPED = {"prompt": COLUMNS["prompt"], "chosen": COLUMNS["rejected"], "rejected": COLUMNS["chosen"]}


def pairs(count: int = 20, columns: dict[str, list[str]] = COLUMNS) -> PreferenceDataset:
    """The first `count` pairs; the style of the answer decides which one is chosen."""
    return PreferenceDataset(
        *(columns[name][:count] for name in ("prompt", "chosen", "rejected")), tiny_tokenizer(), 64, 32
    )


def config(**settings: Any) -> DPOConfig:
    """Settings of a run of a second."""
    small: dict[str, Any] = {"model_name": "an object is passed", "learning_rate": 1e-2, "batch_size": 4}
    small |= {"gradient_accumulation_steps": 1, "max_length": 64, "max_prompt_length": 32, "logging_steps": 1}
    return DPOConfig(**{**small, **settings})


def new_trainer(settings: DPOConfig, **arguments: Any) -> DPOTrainer:
    """A trainer of a fresh random policy; equal settings give equal trainers."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    return DPOTrainer(settings, **{"tokenizer": tiny_tokenizer(), "model": model, **arguments})


def weights_of(trainer: DPOTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
