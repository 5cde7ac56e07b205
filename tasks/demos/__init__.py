"""Embedded data sets and their gold checkers, and how a setting names such a function."""

import inspect
from collections.abc import Callable
from typing import Any

from rlcore.errors import ConfigError
from rlcore.reward_functions import imported_object


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
        function: Callable[..., Any] = imported_object(module_name, function_name)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    return function


def is_checker(function: Callable[..., Any]) -> bool:
    """Whether a function is of the form of `evaluate.gold`, by the names of its parameters: row, response, finished."""
    return tuple(inspect.signature(function).parameters) == ("row", "response", "finished")
