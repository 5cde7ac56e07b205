"""Embedded data sets and their gold checkers, and how a setting names such a function."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rlcore.errors import ConfigError


def named_function(setting: str, name: str) -> Callable[..., Any]:
    """The function that a setting names as `module:function`.

    Raises:
        ConfigError: not of that form, no such module, or no such function in it.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(
            f"{setting}: found {name!r}, expected module:function, as in tasks.demos.arithmetic:generate."
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting}: {name!r} needs the module {error.name}. Install it, or correct the name."
        ) from None
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{setting}: {module_name} has no function {function_name!r}. It has {', '.join(public)}.")
    return function
