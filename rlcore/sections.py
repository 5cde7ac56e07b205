"""A stage's config from its section of a parameter file.

Loads neither torch nor transformers.
"""

from pydantic import ValidationError

from rlcore.configs import StageConfig
from rlcore.configs.faults import described
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
        raise ConfigError(described(error, section, config_class)) from None
