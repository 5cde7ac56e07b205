"""One row as it was read: its place, its bytes, and its content or the reason why it has none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

Format = Literal["jsonl", "json", "csv", "parquet", "hub"]

MAX_ROW_BYTES = 64 << 20
"""The longest row that is read. It bounds the memory that a file without line ends can take."""
BEGIN_BYTES = 1_000
"""Of a row that is too long, or that cannot be read: as much of its begin is kept, or shown."""

FAULTS: Mapping[str, str] = {
    "encoding": "Bytes that are no text in the encoding of the file.",
    "json": "Not a JSON object.",
    "duplicate_key": "A name stands twice in one object, so one of its values would be lost.",
    "number": "A number that is not finite, or needs more than 64 bits.",
    "row_size": f"Longer than {MAX_ROW_BYTES >> 20} MiB.",
    "csv": "Cells that do not fit the names in the first line.",
    "parquet": "No Parquet file, or one that is damaged or holds what JSON cannot.",
    "gzip": "Packed data that are damaged, cut off, or of another sort than gzip.",
    "hub": "The data set could not be read to its end.",
}
"""Rules that reading finds broken, and what each means."""


class Fault(NamedTuple):
    """Why a row could not be read."""

    rule: str
    """A key of FAULTS."""
    line: int
    """Of the fault itself, from 1; a row may begin above it. Parquet and hub: number of the row."""
    column: int | None
    """From 1, in characters; None where the format gives none."""
    message: str
    """What was found, what was expected, what to do. One line, without the place."""
    ends_file: bool = False
    """True where nothing after the fault could be read, so that nobody knows how many rows are missing."""

    def at(self, path: Path) -> str:
        """The fault with its place: `file:line:column: message`."""
        place = f"{path}:{self.line}" if self.column is None else f"{path}:{self.line}:{self.column}"
        return f"{place}: {self.message}"


class Line(NamedTuple):
    """One row as read."""

    number: int
    """Of the line where the row begins, from 1, as editors count. Parquet and hub: number of the row."""
    raw: bytes
    """JSON Lines: the bytes as read, with the line end, without a byte order mark. JSON array: the bytes of the row,
    on one line. Other formats: the row as JSON, on one line. Always UTF-8 where there is no fault."""
    row: dict[str, Any]
    """The content; empty where there is a fault."""
    fault: Fault | None


class Source(NamedTuple):
    """A file, or a data set of the hub, to read rows from."""

    path: Path
    """Hub: `owner/name` or `owner/name:split`."""
    format: Format
    encoding: str
    """A Python codec's name. Parquet and hub have their own."""
    is_packed: bool
    """Packed by gzip."""


def as_raw(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON Lines."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
