"""What all TRL trainers are told alike: when a run does what, on which device, and what has no counterpart there."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub
import torch

from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, RewardModelConfig, SFTConfig, StageConfig
from rlcore.errors import ConfigError
from rlcore.forward_backward import training_device
from rlcore.processes import launched_processes

# The newest checkpoint, the one before it in case the newest is never finished, and the best one.
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """When a run does what, in optimiser steps."""

    total_steps: int
    """Of the whole run. 0 trains nothing."""
    batch_size: int
    """Rows of one backward pass, of all processes together."""
    logging_steps: int
    """Steps between two reports; the last step is reported too."""
    save_every: int | None
    """Steps between two checkpoints from which an interrupted run goes on; None where none will."""
    eval_every: int | None = None
    """Steps between two evaluations, the last step is evaluated too; None without validation rows."""
    best_metric: str = "eval_loss"
    """TRL's name of what decides which evaluated step is the best: the least loss, or the most of anything else."""


def import_trl() -> ModuleType:
    """TRL, which sends no usage figures and does not warn of its experimental parts."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    # An environment variable comes too late: the hub library has read it when it was imported.
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    import trl

    return trl


def training_arguments(
    config: SFTConfig | RewardModelConfig | DPOConfig | ORPOConfig | GRPOConfig,
    plan: Plan,
    folder: Path,
    device: str | None = None,
) -> dict[str, Any]:
    """Keywords that every TRL config takes.

    Args:
        config: settings of the stage.
        plan: see Plan.
        folder: for checkpoints.
        device: as in the settings; None takes a GPU where there is one.

    Raises:
        ConfigError: the processes cannot share a batch equally, or the device is not there or not the first GPU.
    """
    rows = _rows_per_process(plan.batch_size)
    return {
        "output_dir": str(folder),
        "max_steps": plan.total_steps,
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": rows,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "seed": config.seed,
        "logging_steps": plan.logging_steps,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        **_saving(plan),
        **_hardware(device),
    }


def cosine_schedule(min_learning_rate_ratio: float, warmup_steps: int) -> dict[str, Any]:
    """Keywords of a linear warm-up over whole steps and a cosine that ends at this share of the peak."""
    return {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": min_learning_rate_ratio},
        "warmup_steps": warmup_steps,
    }


def refuse_settings(config: StageConfig, names: Iterable[str], trainer: str) -> None:
    """Let settings pass that a TRL trainer has no counterpart for only where they are left alone.

    Raises:
        ConfigError: one of them is not at its default. Names it.
    """
    for name in names:
        value, default = getattr(config, name), type(config).model_fields[name].default
        if value != default:
            raise ConfigError(
                f"{name}={value!r}: TRL's {trainer} has no such setting. Leave it at {default!r}, or take the backend "
                "'own' where the stage has it."
            )


def _rows_per_process(rows: int) -> int:
    count = launched_processes().count
    if rows % count:
        raise ConfigError(f"Found {rows} rows of one backward pass for {count} processes, expected a multiple of them.")
    return rows // count


def _saving(plan: Plan) -> dict[str, Any]:
    if plan.eval_every is None and plan.save_every is None:
        return {"save_strategy": "no"}
    evaluation = {
        "eval_strategy": "steps",
        "eval_steps": plan.eval_every,
        "metric_for_best_model": plan.best_metric,
        "greater_is_better": plan.best_metric != "eval_loss",
    }
    return {
        "save_steps": plan.save_every or plan.total_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "save_only_model": plan.save_every is None,
        **(evaluation if plan.eval_every else {}),
    }


def _hardware(name: str | None) -> dict[str, Any]:
    device, count = training_device(name), launched_processes().count
    on_gpu = device.type == "cuda"
    if not on_gpu and device.type != "cpu" or on_gpu and device.index and count == 1:
        raise ConfigError(
            f"device={name!r}: TRL takes the CPU or the first GPU. Use cpu or cuda, and show it one GPU alone with "
            "CUDA_VISIBLE_DEVICES."
        )
    return {
        "use_cpu": not on_gpu,
        "bf16": on_gpu and torch.cuda.is_bf16_supported(),
        "activation_checkpointing": False,
        "dataloader_pin_memory": on_gpu,
    }
