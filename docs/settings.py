"""Write the tables of settings and practices in the pages from their definitions: `python docs/settings.py`."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlcore import configs
from rlcore.practices import PRACTICES

DOCS = Path(__file__).parent
PAGES = (*sorted((DOCS / "guides").glob("*.md")), DOCS / "practices.md", DOCS / "data.md")
HEADER = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"

_PRACTICES = re.compile(r"(<!-- practices -->\n).*?(<!-- end of practices -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- settings of (\w+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "`True` or `False`", NoneType: "`None`"}


def with_tables(page: str) -> str:
    """The page with every table of settings as the classes have it."""
    page = _PRACTICES.sub(lambda found: found[1] + practice_table() + found[2], page)
    return _TABLE.sub(lambda found: found[1] + table(getattr(configs, found[2])) + found[3], page)


def practice_table() -> str:
    """A row for each practice."""
    header = "| name | recommended by | what is checked | when | otherwise |\n|---|---|---|---|---|\n"
    return header + "".join(
        f"| `{practice.name}` | {practice.source} | {practice.statement} | {practice.moment} | {practice.severity}s |\n"
        for practice in PRACTICES.values()
    )


def table(config_class: type[BaseModel]) -> str:
    """A row for each setting: what has to be given first, then what the class adds, then what it shares with others."""
    own = config_class.__annotations__
    fields = sorted(config_class.model_fields.items(), key=lambda item: (not item[1].is_required(), item[0] not in own))
    return HEADER + "".join(row for name, field in fields for row in _rows(name, field))


def _rows(name: str, field: FieldInfo) -> Iterator[str]:
    default = "required" if field.is_required() else f"`{_written(field.default)}`"
    meaning = (field.description or "").replace("\n", " ").replace("|", "\\|")
    yield f"| `{name}` | {default} | {_allowed(field)} | {meaning} |\n"
    for part in _parts(field.annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            for inner, its_field in part.model_fields.items():
                yield from _rows(f"{name}.{inner}", its_field)


def _written(value: Any) -> str:
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}()"
    return f"{value:g}" if isinstance(value, float) else repr(value).replace("'", '"')


def _allowed(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in _SIGNS.items()
        if hasattr(bound, name)
    ]
    return " or ".join(_kind(part, bounds) for part in _parts(field.annotation))


def _kind(part: Any, bounds: list[str]) -> str:
    if get_origin(part) is tuple:
        return "several texts"
    if part in (int, float):
        return f"{_WORDS[part]} {', '.join(bounds)}".strip()
    if isinstance(part, str):
        return f'`"{part}"`'
    return _WORDS.get(part) or f"`{part.__name__}`"


def _parts(annotation: Any) -> list[Any]:
    """The types or literal values of which a setting is one."""
    is_choice = get_origin(annotation) in (UnionType, Union, Literal)
    return list(get_args(annotation)) if is_choice else [annotation]


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
