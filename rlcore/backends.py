"""The one place that chooses which trainer runs a stage."""

from collections.abc import Callable
from importlib import import_module

from rlcore.errors import ConfigError
from rlcore.results import TrainResult

TRAINERS = {
    ("sft", "trl"): "rlcore.trl_trainers.sft",
    ("reward", "own"): "rlcore.reward",
    ("ppo", "own"): "rlcore.ppo",
}
DEFAULT_BACKENDS = {"sft": "trl", "reward": "own", "ppo": "own"}


def trainer_for(stage: str, backend: str | None = None) -> Callable[..., TrainResult]:
    """The train function of a stage, from the named backend or the stage's default one.

    Raises:
        ConfigError: there is no such trainer.
    """
    key = (stage, backend or DEFAULT_BACKENDS.get(stage, ""))
    if key not in TRAINERS:
        known = ", ".join(f"{name} ({backend})" for name, backend in TRAINERS)
        raise ConfigError(f"Found stage {stage!r} with backend {backend!r}, expected one of: {known}.")
    return import_module(TRAINERS[key]).train
