"""The text rules on whole rows: every text of a row is looked at, and mended where the policy is to repair."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from rlcore.cli.conversations import are_messages
from tasks.intake.kinds import MESSAGES, Kind
from tasks.intake.text.texts import TextRule, found_in


class TextFault(NamedTuple):
    """A text that breaks a rule."""

    position: int
    """Of the row."""
    field: str
    rule: str
    message: str
    text: str
    """As it was read."""
    start: int
    """Where the fault begins in it."""
    is_repaired: bool


_Place = tuple[int, int | None]
"""Position of a row, and index of a message in it; None where the column holds text."""


def mended(
    kind: Kind, rows: Mapping[int, dict[str, Any]], rules: Mapping[str, TextRule], repaired: frozenset[str]
) -> tuple[dict[int, dict[str, Any]], list[TextFault]]:
    """Look at every text of the rows.

    Args:
        kind: of the rows.
        rows: position → row. They stay as they are.
        rules: to look for.
        repaired: those of them whose faults are mended.

    Returns:
        Position → a copy of each row that was mended, and all faults.
    """
    faults: list[TextFault] = []
    changed: dict[int, dict[str, Any]] = {}
    columns = (*kind.texts, MESSAGES) if kind.name == "demonstrations" else kind.texts
    for column in columns:
        places, texts = _texts(column, rows)
        broken: dict[int, list[tuple[str, str, int]]] = {}
        for found in found_in(texts, rules):
            broken.setdefault(found.position, []).append((found.rule, found.match.name, found.match.start))
        for index in sorted(broken):
            (position, at), text = places[index], texts[index]
            names = [name for name, _, _ in broken[index]]
            better = _better(text, [rules[name] for name in names if name in repaired])
            left = {found.rule for found in found_in([better], rules)} if better != text else set(names)
            if better != text:
                row = changed.setdefault(position, deepcopy(rows[position]))
                _put(row, column, at, better)
            for name, what, start in broken[index]:
                message = f"{what} at character {start + 1}{_of_message(at)}."
                is_repaired = name in repaired and name not in left
                faults.append(TextFault(position, column, name, message, text, start, is_repaired))
    return changed, faults


def _texts(column: str, rows: Mapping[int, dict[str, Any]]) -> tuple[list[_Place], list[str]]:
    places: list[_Place] = []
    texts: list[str] = []
    for position, row in rows.items():
        value = row.get(column)
        if isinstance(value, str):
            places.append((position, None))
            texts.append(value)
        elif value is not None and are_messages(value):
            for at, message in enumerate(value):
                places.append((position, at))
                texts.append(message["content"])
    return places, texts


def _better(text: str, rules: Sequence[TextRule]) -> str:
    for rule in rules:
        if rule.mends is not None:
            text = rule.mends(text)
    return text


def _put(row: dict[str, Any], column: str, at: int | None, text: str) -> None:
    if at is None:
        row[column] = text
    else:
        row[column][at]["content"] = text


def _of_message(at: int | None) -> str:
    return "" if at is None else f" of message {at + 1}"
