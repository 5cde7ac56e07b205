"""The oracle cases notice a fault in any function of rlcore.functional that they can reach, one planted at a time."""

import inspect
import pkgutil
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from rlcore import functional
from tests.support import oracle_adapters
from tests.support.oracles import CASES, check

MODULES = {name: import_module(f"rlcore.functional.{name}") for _, name, _ in pkgutil.iter_modules(functional.__path__)}

# What no kind of case is about; tests/unit pins each of them down.
OUT_OF_REACH = {
    "check_sampling_settings",  # returns nothing
    "require_same_shape",
    "explained_variance",
    "position_ids_from",
    "ppo_total_loss",
    "response_mask_from",
}


def public_functions(module: ModuleType) -> dict[str, Callable]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


FUNCTIONS = {name: value for module in MODULES.values() for name, value in public_functions(module).items()}


def faulty(value: object) -> object:
    """A result that is wrong by a little: 0.1 % and 0.001 of a number, one of an index, the other truth."""
    if isinstance(value, tuple):
        return tuple(map(faulty, value))
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.bool:
        return ~value
    return value * 1.001 + 0.001 if value.is_floating_point() else (value - 1).clamp(min=0)


def plant(monkeypatch: pytest.MonkeyPatch, function: Callable) -> None:
    """Let the function return faulty results, wherever rlcore.functional and the adapters hold it."""

    @wraps(function)
    def broken(*args, **kwargs):
        return faulty(function(*args, **kwargs))

    for module in [*MODULES.values(), oracle_adapters]:
        for name, value in list(vars(module).items()):
            if value is function:
                monkeypatch.setattr(module, name, broken)
            elif isinstance(value, dict) and function in value.values():
                monkeypatch.setattr(
                    module, name, {key: broken if held is function else held for key, held in value.items()}
                )


def is_noticed() -> bool:
    for case in CASES:
        if case["kind"] in ("math_answer", "stop_sequence"):
            continue
        try:
            check(case)
        except (AssertionError, ValueError, IndexError, RuntimeError):
            return True
    return False


def test_without_a_fault_nothing_is_noticed():
    assert not is_noticed()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_fault_is_noticed(name, monkeypatch):
    plant(monkeypatch, FUNCTIONS[name])
    assert is_noticed() == (name not in OUT_OF_REACH), "give it an adapter, or name it in OUT_OF_REACH"


def test_no_module_is_out_of_reach():
    assert set(MODULES) >= {"advantages", "filtering", "kl", "logprobs", "losses", "masking", "precision"}
    for module in MODULES.values():
        assert set(public_functions(module)) - OUT_OF_REACH, module
    assert set(FUNCTIONS) >= OUT_OF_REACH
