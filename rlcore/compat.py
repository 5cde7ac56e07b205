"""The documents' import names, on request: after one call `autotrain.trainers.rl` and its neighbours are rlcore."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rlcore.errors import ConfigError

ROOT = "autotrain"

HOMES = {
    "autotrain": None,
    "autotrain.project": "rlcore.cli.project",
    "autotrain.trainers": None,
    "autotrain.trainers.clm": None,
    "autotrain.trainers.clm.params": "rlcore.cli.params",
    "autotrain.trainers.rl": "rlcore",
    "autotrain.trainers.rl.dpo": "rlcore.dpo",
    "autotrain.trainers.rl.environments": "rlcore.environments",
    "autotrain.trainers.rl.forward_backward": "rlcore.forward_backward",
    "autotrain.trainers.rl.ppo": "rlcore.ppo",
    "autotrain.trainers.rl.reward_model": "rlcore.reward",
}
"""Our module behind each documented one; None behind those that only hold others."""


class _Alias(ModuleType):
    """A module that takes its names from `home` when they are asked for, so that nothing is loaded before."""

    def __init__(self, name: str, home: str | None):
        super().__init__(name, f"Another name of {home}.")
        self.__path__: list[str] = []
        self._home = home

    def __getattr__(self, name: str) -> Any:
        # Whoever looks through all modules asks each for its __file__, which must load nothing.
        if self._home is None or (name.startswith("__") and name != "__all__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(self._home), name)


def enable_autotrain_imports() -> None:
    """Let `from autotrain.trainers.rl import …` and the other documented imports find rlcore. Loads nothing.

    Raises:
        ConfigError: a package `autotrain` is there, whose names would be hidden.
    """
    if isinstance(sys.modules.get(ROOT), _Alias):
        return
    if ROOT in sys.modules or find_spec(ROOT) is not None:
        raise ConfigError(
            f"Found a package {ROOT!r}, expected none. Uninstall it, or import the names from rlcore instead."
        )
    for name, home in HOMES.items():
        sys.modules[name] = _Alias(name, home)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, sys.modules[name])
