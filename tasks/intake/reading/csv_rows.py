"""CSV: the names of the columns in the first line, then a row of as many cells, each a text."""

import csv
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tasks.intake.reading.lines import BEGIN_BYTES, MAX_ROW_BYTES, Fault, Line, Source, as_raw
from tasks.intake.reading.streams import Place, Stream, opened, text_lines, too_long, undecodable

_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_REASONS = {
    "unexpected end of data": "A quotation mark opens a cell that nothing closes. Close it, or write the mark twice.",
    "',' expected after '\"'": "Found text after a closing quotation mark. Inside a cell the mark is written twice.",
    "new-line character": "Found a carriage return (\\r) outside of quotation marks. Quote the cell.",
}
"""Begin of what the csv module says → what to say."""


def csv_rows(source: Source) -> Iterator[Line]:
    """The rows of a file. Where a row is broken, reading goes on in the line after the one where it begins."""
    with opened(source) as stream:
        lines = _Lines(stream, source.encoding)
        names: list[str] | None = None
        for number, raw, cells, fault in _rows(lines):
            if names is not None:
                yield _line(number, raw, names, cells, fault)
            elif header_fault := fault or _header_fault(cells, number):
                yield Line(number, raw, {}, header_fault._replace(ends_file=True))
                return
            else:
                names = cells
        yield from stream.last_line(lines.begin, b"".join(raw for _, raw in lines.row))


def _line(number: int, raw: bytes, names: list[str], cells: list[str], fault: Fault | None) -> Line:
    if fault is not None:
        return Line(number, raw, {}, fault)
    if len(cells) != len(names):
        message = f"Found {len(cells)} instead of {len(names)} cells ({', '.join(names):.200}). Mend the row."
        return Line(number, raw, {}, Fault("csv", number, None, message))
    row = dict(zip(names, cells, strict=True))
    return Line(number, as_raw(row), row, None)


def _header_fault(names: list[str], number: int) -> Fault | None:
    """Why the first line does not name the columns."""
    message = None
    if names[0].lstrip().startswith(("{", "[")):
        message = "Found JSON, expected the names of the columns. Let the name of the file end in .jsonl or .json."
    elif len(names) == 1 and (found := next((mark for mark in _OTHER_DELIMITERS if mark in names[0]), None)):
        message = f"Found {_OTHER_DELIMITERS[found]} between the names, expected commas. Export the file with commas."
    elif empty := [number for number, name in enumerate(names, start=1) if not name.strip()]:
        message = f"Found no name for column {empty[0]}. Name every column in the first line."
    elif padded := [name for name in names if name != name.strip()]:
        message = f"Found the name {padded[0]!r} with blanks around it. Take the blanks out."
    elif repeated := [name for name in names if names.count(name) > 1]:
        message = f"Found the name {repeated[0]!r} twice. Give every column a name of its own."
    return None if message is None else Fault("csv", number, None, message)


class _Row(NamedTuple):
    """Number of its first line, its lines one after the other, its cells, and what is wrong with it."""

    number: int
    raw: bytes
    cells: list[str]
    fault: Fault | None


def _rows(lines: "_Lines") -> Iterator[_Row]:
    """The rows of cells; a blank line is none."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    # Strict: a quotation mark at the wrong place is a fault, not a guess.
    reader = csv.reader(lines, strict=True)
    while True:
        lines.begin_row()
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if lines.is_damaged:
                return
            lines.break_row(str(error))
        raw = b"".join(raw for _, raw in lines.row)
        if lines.fault is not None and lines.fault.rule == "row_size":
            raw = raw[:BEGIN_BYTES]
        if raw.strip():
            yield _Row(lines.begin, raw, cells, lines.fault)


class _Lines:
    """The lines of a file as the csv module takes them.

    Attributes:
        row: place and bytes of the lines that it took for a row.
        fault: the first one found in them.
    """

    def __init__(self, stream: Stream, encoding: str) -> None:
        self.row: list[tuple[Place, bytes]] = []
        self.fault: Fault | None = None
        self._stream, self._encoding = stream, encoding
        self._lines = text_lines(stream)
        self._again: deque[tuple[Place, bytes]] = deque()
        self._last = self._size = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        place, raw = self._again.popleft() if self._again else next(self._lines)
        self.row.append((place, raw))
        self._last = place.line
        self._size += len(raw)
        if self._size >= MAX_ROW_BYTES:
            raise csv.Error
        if self.is_damaged:
            raise StopIteration
        return self._decoded(raw, place)

    @property
    def is_damaged(self) -> bool:
        """Whether the last line ends where the file is damaged."""
        return bool(self._stream.damage and self.row) and not self.row[-1][1].endswith(b"\n")

    @property
    def begin(self) -> int:
        """Number of the line where the row begins that is being read."""
        return self.row[0][0].line if self.row else self._last + 1

    def begin_row(self) -> None:
        """Take the lines of the next row."""
        self.row, self.fault, self._size = [], None, 0

    def break_row(self, reason: str) -> None:
        """Leave all lines but the first to the rows that follow."""
        place = self.row[0][0]
        if self._size >= MAX_ROW_BYTES:
            self.fault = too_long(place)
        elif self.fault is None or self.fault.line != place.line:
            said = next((said for start, said in _REASONS.items() if reason.startswith(start)), f"{reason}.")
            self.fault = Fault("csv", place.line, None, said)
        self._again.extendleft(reversed(self.row[1:]))
        del self.row[1:]

    def _decoded(self, raw: bytes, place: Place) -> str:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            self.fault = self.fault or undecodable(raw, error, place, self._encoding)
            return raw.decode(errors="replace")
        if "\0" in text and self.fault is None:
            message = "Found a zero character, expected text. Export the file again."
            self.fault = Fault("csv", place.line, text.index("\0") + 1, message)
        return text
