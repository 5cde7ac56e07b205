"""Lines of a JSON Lines file: each with its number, its bytes, and its row or the reason why it has none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlcore.errors import DataError

_BOM = b"\xef\xbb\xbf"


def _reject(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)


class Line(NamedTuple):
    """One line that is not blank."""

    number: int
    """From 1, as editors count."""
    raw: bytes
    """The bytes as read, with the line end; a byte order mark is not part of the first line."""
    row: dict[str, Any]
    """The decoded object; empty where there is a fault."""
    fault: str | None
    """"encoding", "json", or None."""


def chunks(path: Path, max_rows: int = 20_000, max_bytes: int = 32 << 20) -> Iterator[list[Line]]:
    """The lines of a file, decoded, in pieces that fit into memory.

    Raises:
        DataError: there is no such file.
    """
    piece: list[Line] = []
    size = 0
    for number, raw in raw_lines(path):
        piece.append(_decode(number, raw))
        size += len(raw)
        if len(piece) >= max_rows or size >= max_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Number and bytes of each line that is not blank. Only `\n` ends a line: other separators may stand in a text.

    Raises:
        DataError: there is no such file.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Add it; an empty file says that there are no such rows.") from None
    with file:
        for number, raw in enumerate(file, start=1):
            if (line := raw.removeprefix(_BOM) if number == 1 else raw).strip():
                yield number, line


def _decode(number: int, raw: bytes) -> Line:
    try:
        row = _DECODER.decode(raw.decode("utf-8"))
        if b"\\ud" in raw.lower():
            # Half a surrogate pair can be escaped in JSON, but no encoding can write it.
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        return Line(number, raw, {}, "encoding")
    except (ValueError, RecursionError):
        return Line(number, raw, {}, "json")
    return Line(number, raw, row, None) if isinstance(row, dict) else Line(number, raw, {}, "json")
