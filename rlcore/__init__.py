"""Preference fine-tuning of language models: PPO, reward models, sampling, checkpoints.

Names load on first use, so that `from rlcore import PPOConfig` loads no torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "rlcore.backends": ("trainer_for",),
    "rlcore.configs": ("PPOConfig", "RewardModelConfig", "SFTConfig"),
    "rlcore.errors": ("CheckpointError", "ConfigError", "DataError", "RLCoreError", "TrainingDiverged"),
    "rlcore.forward_backward": (
        "AsyncTrainingClient",
        "AsyncTrainingFuture",
        "ForwardBackwardOutput",
        "ForwardBackwardPipeline",
        "OptimStepOutput",
    ),
    "rlcore.kl_control": ("AdaptiveKLController",),
    "rlcore.models": ("PPOModel", "ValueHead"),
    "rlcore.ppo": ("PPOTrainer",),
    "rlcore.results": ("RewardSource", "TrainResult"),
    "rlcore.reward": ("RewardModel", "RewardModelSource"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rlcore' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
