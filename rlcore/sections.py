"""A stage's config from its section of a parameter file, and what is said about a section that is wrong.

Loads neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rlcore.configs import StageConfig
from rlcore.errors import ConfigError


def build_config(config_class: type[StageConfig], section: str, values: object) -> StageConfig:
    """A stage's config from the mapping under its section of a parameter file.

    Raises:
        ConfigError: the section is missing or not a mapping, a key is unknown, or a value is out of range. One line for
            each fault, with the key, what was found, what was expected and what to do.
    """
    if not isinstance(values, dict):
        found = "nothing" if values is None else f"{type(values).__name__} {values!r}"
        raise ConfigError(
            f"Section {section!r}: found {found}, expected a mapping of settings. Add `{section}:` to the file."
        )
    try:
        return config_class.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(section, fault, config_class) for fault in error.errors())) from None


def _describe(section: str, fault: Mapping[str, Any], config_class: type[StageConfig]) -> str:
    location = fault["loc"]
    key = ".".join([section, *(str(part) for part in location)])
    if fault["type"] == "extra_forbidden":
        known = ", ".join(_class_at(config_class, location[:-1]).model_fields)
        return f"{key}: unknown key. Known keys: {known}. Correct or remove it."
    if fault["type"] == "missing":
        return f"{key}: missing. Add it to the file."
    expected = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        # Settings that contradict each other: the message names them, and the input is the whole section.
        return f"{key}: {expected}. Change one of them."
    return f"{key}: found {fault['input']!r}. {expected}. Correct the value."


def _class_at(config_class: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The class of the settings at a path of field names, where a field may also be null."""
    for name in path:
        annotation = config_class.model_fields[str(name)].annotation
        parts = (annotation, *get_args(annotation))
        config_class = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return config_class
