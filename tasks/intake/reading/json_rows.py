"""The row in the text of one JSON object, read strictly; where it breaks, the place and the reason."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from tasks.intake.reading.lines import Fault
from tasks.intake.reading.streams import Place, position, undecodable

MAX_DEPTH = 100
"""Objects and lists inside each other."""

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_REASONS = {
    "Extra data": "Found {found} after the row, expected its end. Between objects stands nothing but a line break.",
    "Expecting property name": "Found {found}, expected a name in double quotes.",
    "Expecting value": "Found {found}, expected a value.",
    "Expecting ',' delimiter": 'Found {found}, expected a comma or the end. A quotation mark in a text is \\".',
    "Expecting ':' delimiter": "Found {found}, expected a colon after the name.",
    "Unterminated string": "The text that begins here has no end. A line break inside a text is written \\n.",
    "Invalid control character": "Found {found} inside a text, expected its escape, \\u{code:04x}.",
    "Invalid \\escape": "Found a backslash and {following}, expected an escape of JSON. A backslash is written \\\\.",
    "Invalid \\uXXXX escape": "Found an escape \\u without four hexadecimal digits.",
    "Illegal trailing comma": "Found a comma before the end, expected a value. Take it out.",
}
"""Begin of what the decoder says → what to say."""
_PYTHON = ("None", "True", "False")


def row_of(raw: bytes, place: Place, encoding: str) -> tuple[dict[str, Any], Fault | None]:
    """The object that stands in some UTF-8 text, or an empty one and the fault.

    Args:
        raw: the text.
        place: where it begins.
        encoding: of the file that it comes from.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return {}, undecodable(raw, error, place, encoding)
    try:
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
            _check_depth(text)
        row = _DECODER.decode(text)
        if isinstance(row, dict):
            return row, None
        sort = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(row), "a number")
        broken = _Broken("json", f"Found {sort}, expected an object with columns.", len(text) - len(text.lstrip()))
    except _Broken as found:
        broken = found
    except json.JSONDecodeError as error:
        broken = _Broken("json", *_reason(text, error))
    line, column = position(text[: broken.place(text)], place)
    return {}, Fault(broken.rule, line, column, broken.message)


class _Broken(Exception):
    """Text that is no row.

    Attributes:
        at: where, in characters; where a token stands for the place, that.
    """

    def __init__(self, rule: str, message: str, at: int | str) -> None:
        super().__init__(message)
        self.rule, self.message, self.at = rule, message, at

    def place(self, text: str) -> int:
        """The place of the fault, in characters."""
        if isinstance(self.at, int):
            return self.at
        return next((token.start() for token in _TOKEN.finditer(text) if token[0] == self.at), 0)


class _Repeated(_Broken):
    """A name that stands twice in one object."""

    def __init__(self, name: str) -> None:
        message = f"Found the name {name!r:.80} twice in one object, expected it once. Take one of the values out."
        super().__init__("duplicate_key", message, name)

    def place(self, text: str) -> int:
        """The place where a name comes again."""
        return next(_repetitions(text), 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1))
    return row


def _integer(digits: str) -> int:
    # Fewer than 19 digits always fit; the conversion of very many is slow, and refused by Python.
    if len(digits) < 19 or (len(digits) < 22 and -(2**63) <= int(digits) < 2**64):
        return int(digits)
    raise _Broken("number", f"Found {digits:.30}, expected at most 64 bits. Write it as text.", digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _Broken("number", f"Found {digits:.30}, expected at most 1.8e308. Write it as text.", digits)
    return value


def _constant(name: str) -> None:
    raise _Broken("number", f"Found {name}, expected a number that JSON has. Write null, or take the row out.", name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth > MAX_DEPTH:
            raise _Broken("json", f"Found more than {MAX_DEPTH} objects or lists inside each other.", token.start())


def _repetitions(text: str) -> Iterator[int]:
    """Where a name begins that its object has already."""
    names: list[set[str]] = []
    tokens = list(_TOKEN.finditer(text))
    for token, following in zip(tokens, tokens[1:], strict=False):
        if token[0] in "{[":
            names.append(set())
        elif token[0] in "}]":
            names.pop()
        elif following[0] == ":":
            name = json.loads(token[0])
            if name in names[-1]:
                yield token.start()
            names[-1].add(name)


def _reason(text: str, error: json.JSONDecodeError) -> tuple[str, int]:
    """What to say of an error, and its place in characters."""
    before, rest = text[: error.pos].rstrip(), text[error.pos :]
    if before.endswith(",") and rest.startswith(("}", "]")):
        return f"Found a comma before {rest[0]}, expected a value. Take the comma out.", len(before) - 1
    return _message(rest, error.msg), error.pos


def _message(rest: str, said: str) -> str:
    if not rest.strip():
        return "The row ends in the middle of a value. Is the file cut off, or the row spread over several lines?"
    if rest[0] == "'":
        return "Found a single quotation mark, expected a double one. Write rows with json.dumps."
    if rest[0] == "\ufeff":
        return "Found a byte order mark inside the file. Join files without it."
    if word := next((word for word in _PYTHON if rest.startswith(word)), None):
        return f"Found {word}, expected null, true or false. Write rows with json.dumps."
    known = next((message for start, message in _REASONS.items() if said.startswith(start)), None)
    if known is None:
        return f"{said}."
    return known.format(found=shown(rest[0]), code=ord(rest[0]), following=shown(rest[1:2]))


def shown(character: str) -> str:
    """A character as a message shows it."""
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character or ' '):04X}"
