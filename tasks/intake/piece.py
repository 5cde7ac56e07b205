"""A few rows of one file while they are looked at: what is left of each, and what was found."""

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.intake.findings import Explain, FileReport
from tasks.intake.reading import Line, as_raw
from tasks.intake.rules import Severity


class Piece:
    """Rows under way.

    Attributes:
        lines: as read.
        file: gets the findings.
        first: number of the first row in the file, from 0.
        rows: position → content, mended where it was; rows that could not be read are not there.
        reasons: position → why the row is not usable, as `field: rule`, or the rule alone.
        changed: positions of the rows that were mended.
    """

    def __init__(self, lines: Sequence[Line], file: FileReport):
        self.lines, self.file, self.first = lines, file, file.rows
        self.rows: dict[int, dict[str, Any]] = {
            position: line.row for position, line in enumerate(lines) if line.fault is None
        }
        self.reasons: dict[int, list[str]] = {}
        self.changed: set[int] = set()

    def note(self, position: int, field: str, rule: str, explain: Explain, severity: Severity | None = None) -> None:
        """Report a breach, and take the row out where the rule's policy says so."""
        place = (self.first + position, self.lines[position].number, field)
        if self.file.add(rule, place, explain, severity) == "error":
            self.reasons.setdefault(position, []).append(f"{field}: {rule}" if field else rule)

    def usable(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Position and content of each row that nothing is wrong with so far."""
        return ((position, row) for position, row in self.rows.items() if position not in self.reasons)

    def raw(self, position: int) -> bytes:
        """A row as one line of JSON Lines: the bytes as read, unless it was mended."""
        if position in self.changed:
            return as_raw(self.rows[position])
        raw = self.lines[position].raw
        return raw if raw.endswith(b"\n") else raw + b"\n"
