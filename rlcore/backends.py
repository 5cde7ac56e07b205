"""The one place that knows which trainer runs a stage: our own, or a thin one around TRL's."""

from collections.abc import Callable
from importlib import import_module

from rlcore.errors import ConfigError
from rlcore.results import TrainResult

TRAINERS = {
    ("sft", "trl"): "rlcore.trl_trainers.sft",
    ("reward", "own"): "rlcore.reward",
    ("reward", "trl"): "rlcore.trl_trainers.reward",
    ("ppo", "own"): "rlcore.ppo",
    ("grpo", "own"): "rlcore.grpo",
    ("grpo", "trl"): "rlcore.trl_trainers.grpo",
    ("dpo", "own"): "rlcore.dpo",
    ("dpo", "trl"): "rlcore.trl_trainers.dpo",
    ("orpo", "trl"): "rlcore.trl_trainers.orpo",
}
"""By stage and backend, the module whose `train` runs the stage."""

DEFAULT_BACKENDS = {"sft": "trl", "reward": "own", "ppo": "own", "grpo": "own", "dpo": "own", "orpo": "trl"}
"""The backend of a stage where none is named."""


def trainer_for(stage: str, backend: str | None = None) -> Callable[..., TrainResult]:
    """The train function of a stage.

    Args:
        stage: a key of DEFAULT_BACKENDS.
        backend: "own", "trl", or None for the stage's default.

    Raises:
        ConfigError: there is no such trainer. Lists those that there are.
    """
    if stage not in DEFAULT_BACKENDS:
        raise ConfigError(f"Found stage {stage!r}, expected one of: {', '.join(DEFAULT_BACKENDS)}. Correct the name.")
    module = TRAINERS.get((stage, DEFAULT_BACKENDS[stage] if backend is None else backend))
    if module is None:
        raise ConfigError(
            f"Found backend {backend!r} for stage {stage}, expected one of: {', '.join(backends_of(stage))}. "
            "Name one of them, or none."
        )
    return import_module(module).train


def backends_of(stage: str) -> list[str]:
    """The backends that a stage has."""
    return [backend for trained, backend in TRAINERS if trained == stage]
