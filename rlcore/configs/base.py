"""What settings of several stages share."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from rlcore.configs.faults import described
from rlcore.errors import ConfigError


class Settings(BaseModel):
    """Frozen fields, no unknown keys, finite numbers; True is no number, and 1 is no switch.

    Numbers may come as text, as YAML reads 1e-5.

    Raises:
        ConfigError: a setting is unknown, missing or out of range, or two contradict each other. One line for each
            fault, with what was found and what was expected.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    def __init__(self, **settings: Any):
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(described(error, type(self).__name__, type(self))) from None

    # Without it, pydantic would make settings inside other settings through this method and lose where a fault is.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same settings with those of `update` in place of its own, checked like new ones.

        Raises:
            ConfigError: see the class.
        """
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**own | dict(update or {}))

    @field_validator("*", mode="before")
    @classmethod
    def _switches_are_no_numbers(cls, value: object, info: ValidationInfo) -> object:
        _refuse_other_kind(value, cls.model_fields[str(info.field_name)].annotation)
        return value


class StageConfig(Settings):
    """What every stage has: the properties of settings, and one seed."""

    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of every random number of the stage."""


class LoraConfig(Settings):
    """Low-rank adapters (Hu et al. 2022). The base stays frozen and serves as the reference model."""

    rank: int = Field(16, ge=1)
    """Rank of the update of each weight matrix."""
    alpha: float = Field(32, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Module names to adapt, or "all-linear" for every linear layer but the output layer."""


def _refuse_other_kind(value: object, annotation: Any) -> None:
    """Let a value pass that is no switch where a number belongs, and no number where a switch does."""
    kinds = _kinds(annotation)
    takes_number, takes_switch = bool(kinds & {int, float}), bool in kinds
    if isinstance(value, bool) and takes_number and not takes_switch:
        raise PydanticCustomError("switch_as_number", "Input should be a number, not true or false")
    if type(value) in (int, float) and takes_switch and not takes_number:
        raise PydanticCustomError("number_as_switch", "Input should be true or false, not a number")
    if isinstance(value, Mapping):
        for kind in kinds:
            for part in value.values() if get_origin(kind) is dict else ():
                _refuse_other_kind(part, get_args(kind)[1])


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field takes, without those inside of containers."""
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {annotation}
