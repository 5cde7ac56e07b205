"""Rows of a gzip'd JSON Lines file, as data sets are handed around."""

import gzip
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlcore.errors import DataError


def read_packed_rows(path: Path, columns: Collection[str] = ()) -> list[dict[str, Any]]:
    """All rows of a file.

    Args:
        path: a `.jsonl.gz` below demo_data.source.
        columns: that each row must have.

    Raises:
        DataError: no such file, no gzip, a line that is no JSON object, or a row that lacks a column.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            rows = [json.loads(line) for line in file]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Set demo_data.source to a folder that holds it.") from None
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not gzip'd JSON Lines ({error}). Fetch the file again.") from None
    for number, row in enumerate(rows, start=1):
        if missing := [name for name in columns if not isinstance(row, dict) or name not in row]:
            raise DataError(f"{path}:{number}: lacks {', '.join(missing)}. Set demo_data.source to another folder.")
    return rows
