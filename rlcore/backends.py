"""The one place that knows which trainer runs a stage."""

from collections.abc import Callable
from importlib import import_module

from rlcore.errors import ConfigError
from rlcore.results import TrainResult

TRAINERS = {
    "sft": "rlcore.trl_trainers.sft",
    "reward": "rlcore.reward",
    "ppo": "rlcore.ppo",
    "dpo": "rlcore.dpo",
}
"""The module whose `train` runs a stage."""


def trainer_for(stage: str) -> Callable[..., TrainResult]:
    """The train function of a stage.

    Raises:
        ConfigError: there is no such trainer.
    """
    if stage not in TRAINERS:
        raise ConfigError(f"Found stage {stage!r}, expected one of: {', '.join(TRAINERS)}. Correct the name.")
    return import_module(TRAINERS[stage]).train
