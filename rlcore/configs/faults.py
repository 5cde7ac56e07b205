"""What is said about settings that are wrong."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def described(error: ValidationError, name: str, config_class: type[BaseModel]) -> str:
    """One line for each fault: the setting, what was found, what was expected and what to do.

    Args:
        error: of pydantic.
        name: of the settings as a whole, which stands in front of each key.
        config_class: class of the settings.
    """
    return "\n".join(_line(name, fault, config_class) for fault in error.errors())


def _line(name: str, fault: Mapping[str, Any], config_class: type[BaseModel]) -> str:
    location = fault["loc"]
    key = ".".join([name, *(str(part) for part in location)])
    if fault["type"] == "extra_forbidden":
        known = ", ".join(_class_at(config_class, location[:-1]).model_fields)
        return f"{key}: unknown key. Known keys: {known}. Correct or remove it."
    if fault["type"] == "missing":
        return f"{key}: missing. Give it a value."
    expected = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error" and isinstance(fault["input"], Mapping):
        # Settings that contradict each other: the message names them, and the input is all of them.
        return f"{key}: {expected}. Change one of them."
    return f"{key}: found {fault['input']!r}. {expected}. Correct the value."


def _class_at(config_class: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The class of the settings at a path of field names, where a field may also be null."""
    for name in path:
        annotation = config_class.model_fields[str(name)].annotation
        parts = (annotation, *get_args(annotation))
        config_class = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return config_class
