"""Rows of validated files for whoever reads texts, and not messages."""

from pathlib import Path
from typing import Any

from tasks.intake.kinds import KINDS, as_text, values_of
from tasks.records.artifacts import read_rows


def text_rows(path: Path) -> list[dict[str, Any]]:
    """The rows with text in the text columns of their kind: of messages, their contents one after the other.

    Args:
        path: `<kind>/<split>.jsonl` or `<kind>.jsonl`.

    Raises:
        DataError: see read_rows.
    """
    kind = KINDS[path.parent.name if path.parent.name in KINDS else path.stem]
    return [
        {**row, **{name: as_text(value) or "" for name, value in values_of(kind, row).items()}}
        for row in read_rows(path)
    ]
