"""The settings of a run as a form: every section of `params.yaml`, all fields optional, for Prefect's page of a run.

The classes are made from those of `rlcore.configs`. A field that is left empty leaves its setting as it is; what may be
null is set to it by `section.key=null` among the single settings.
"""

import json
import warnings
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from tasks.records.parameters import SECTIONS, SEED_LIMIT

Algorithm = Literal["ppo", "grpo", "dpo", "orpo"]
Stage = Literal["demo_data", "validate", "sft", "reward", "policy", "evaluate"]
Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT)]


_HIDDEN_NULL: Any = Annotated[None, SkipJsonSchema()]


class Form(BaseModel):
    """Optional settings, nested like those of `params.yaml`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    def assignments(self, prefix: str = "") -> Iterator[str]:
        """What is filled in, as `section.key=value`."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Form):
                yield from value.assignments(f"{prefix}{name}.")
            elif value is not None:
                yield f"{prefix}{name}={json.dumps(value)}"


def assignments(algorithm: Algorithm | None, seed: int | None, settings: Form | None) -> list[str]:
    """What a form says, as single settings `section.key=value`; empty fields say nothing."""
    top = {"algorithm": algorithm, "seed": seed}
    chosen = [f"{name}={json.dumps(value)}" for name, value in top.items() if value is not None]
    return [*chosen, *(settings.assignments() if settings is not None else ())]


def form_of(config_class: type[BaseModel]) -> type[Form]:
    """A class of settings with every field optional, its type, bounds and meaning kept."""
    fields: dict[str, Any] = {name: _optional(field) for name, field in config_class.model_fields.items()}
    return create_model(config_class.__name__, __base__=Form, __doc__=config_class.__doc__, **fields)


def _optional(field: FieldInfo) -> tuple[Any, Any]:
    annotation = _form_type(field.annotation)
    bounded = Annotated[(annotation, *field.metadata)] if field.metadata else annotation
    # Without null and a default in its schema, Prefect's page shows a field as an empty input that it does not send.
    return bounded | _HIDDEN_NULL, Field(None, description=field.description, json_schema_extra=_drop_default)


def _drop_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _form_type(annotation: Any) -> Any:
    """The type without null; settings within settings are optional too."""
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_form_type(part) for part in get_args(annotation) if part is not NoneType)]  # noqa: UP007
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return form_of(annotation)
    return annotation


def _settings_form() -> type[Form]:
    fields: dict[str, Any] = {
        name: (form_of(section) | None, Field(None, description=(section.__doc__ or "").partition("\n")[0]))
        for name, section in SECTIONS.items()
    }
    doc = "Settings of the sections of params.yaml; what is left empty stays as it is there."
    with warnings.catch_warnings():
        # `validate` and `register` are methods of every pydantic class that nobody calls on a form.
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute", category=UserWarning)
        return create_model("Sections", __base__=Form, __doc__=doc, **fields)


if TYPE_CHECKING:
    SettingsForm = Form
else:
    SettingsForm = _settings_form()
