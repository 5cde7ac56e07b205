"""The flags of `rlhf llm`, from the fields of LLMTrainingParams: name, type, default, bounds and meaning."""

import argparse
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlcore.cli.not_offered import NOT_OFFERED
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.readers import readers_of
from rlcore.cli.stages import STAGE_FIELDS
from rlcore.errors import ConfigError

OTHER_SPELLINGS = {"rl_reward_model_path": ("--reward-model",)}
"""Further flags of a field."""

GROUPS = {
    "seed": "what is trained, and where it is written",
    "text_column": "rows",
    "lr": "training",
    "save_strategy": "checkpoints",
    "peft": "adapters",
    "model_ref": "reference",
    "rl_reward_model_path": "rewards",
    "rl_kl_coef": "learning from sampled responses",
    "rl_max_new_tokens": "sampling",
    "push_to_hub": "hub",
}
"""The first field of each group, in the order of the fields, and the group's title."""

_BOUNDS = {Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<")}


def flag_of(name: str) -> str:
    """The flag of a field."""
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse.ArgumentParser, trainer: str | None = None) -> None:
    """Give the parser a flag for each field. A flag that is not given leaves no trace in what is parsed.

    What nothing answers to has a flag too, which is not shown, so that it is refused with its reason.

    Args:
        parser: gets the flags.
        trainer: show only what this trainer reads; None shows all.
    """
    group: Any = parser
    for name, field in LLMTrainingParams.model_fields.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        shown = trainer is None or trainer in readers_of(name)
        _add(group, name, field, _help(name, field) if shown else argparse.SUPPRESS)
    for name, flag in NOT_OFFERED.items():
        _add_option(parser, name, argparse.SUPPRESS, None, is_switch=isinstance(flag.only, bool))


def params_from(given: Mapping[str, Any]) -> LLMTrainingParams:
    """The settings of the flags that were given.

    Raises:
        ConfigError: a value is impossible, or nothing answers to a flag. Names the flag.
    """
    values = {name: _none_or(name, value) for name, value in given.items()}
    try:
        return LLMTrainingParams.model_validate(values)
    except ValidationError as error:
        raise ConfigError(with_flags(" ".join(map(_described, error.errors())))) from None


def with_flags(text: str) -> str:
    """A message with flags in place of the names of fields.

    A name that is an ordinary word too, such as `model`, is one only in front of `=`.
    """
    names = "|".join(sorted({*LLMTrainingParams.model_fields, *NOT_OFFERED}, key=len, reverse=True))

    def spelled(match: re.Match[str]) -> str:
        name, equals = match[1], match[2]
        return f"{flag_of(name)}{equals}" if equals or "_" in name else name

    return re.sub(rf"(?<![\w./'\"-])({names})(?![\w/-])(=?)", spelled, text)


def _add(group: Any, name: str, field: FieldInfo, shown: str) -> None:
    kind = _type_of(field)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    metavar = "|".join(choices) or {int: "N", float: "X"}.get(kind, "JSON" if get_origin(kind) is dict else "TEXT")
    _add_option(group, name, shown, metavar, is_switch=kind is bool)


def _add_option(group: Any, name: str, shown: str, metavar: str | None, *, is_switch: bool) -> None:
    flags = [flag_of(name), *OTHER_SPELLINGS.get(name, ())]
    if not is_switch:
        group.add_argument(*flags, dest=name, default=argparse.SUPPRESS, metavar=metavar, help=shown)
        return
    # All three forms are in use: --flag, --no-flag, --flag true.
    group.add_argument(
        *flags, dest=name, default=argparse.SUPPRESS, nargs="?", const="true", metavar="true|false", help=shown
    )
    group.add_argument(
        f"--no-{flags[0][2:]}", dest=name, default=argparse.SUPPRESS, action="store_const", const="false",
        help=argparse.SUPPRESS,
    )  # fmt: skip


def _help(name: str, field: FieldInfo) -> str:
    """Meaning, who reads it, bounds and default."""
    readers = readers_of(name)
    facts = [", ".join(readers)] if len(readers) < len(STAGE_FIELDS) else []
    bounds = [
        f"{sign} {getattr(mark, key)}"
        for mark in field.metadata
        for kind, (key, sign) in _BOUNDS.items()
        if isinstance(mark, kind)
    ]
    facts += [" and ".join(bounds)] if bounds else []
    facts += [f"default {'none' if field.default is None else str(field.default).lower()}"]
    meaning = re.sub(r"\bnull\b", "none", " ".join(str(field.description).split()))
    return f"{with_flags(meaning)} [{'; '.join(facts)}]".replace("%", "%%")


def _type_of(field: FieldInfo) -> Any:
    """The type of a field's values, None aside."""
    is_union = get_origin(field.annotation) in (UnionType, Union)
    parts = get_args(field.annotation) if is_union else (field.annotation,)
    return next(part for part in parts if part is not NoneType)


def _none_or(name: str, value: Any) -> Any:
    """None where the text says so and the field may be it."""
    field = LLMTrainingParams.model_fields.get(name)
    may_be_none = field is not None and NoneType in get_args(field.annotation)
    return None if may_be_none and str(value).lower() in ("none", "null") else value


def _described(fault: Mapping[str, Any]) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return f"{message}."
    return f"{fault['loc'][0]}={fault['input']!r}: {message}. Correct the value."
