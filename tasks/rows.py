"""Rows of validated files as the tables that trainers take."""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from rlcore.errors import DataError
from tasks.records.artifacts import read_rows


def training_rows(path: Path, columns: Sequence[str]) -> Dataset:
    """The text columns that a trainer reads. Others stay out: a table has one type for each column, rows need not.

    Raises:
        DataError: the file is missing, a line is no JSON object, or a row lacks a column.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, start=1):
        if missing := [column for column in columns if column not in row]:
            raise DataError(f"{path}: row {number} lacks {', '.join(missing)}. Run the stage validate again.")
    return Dataset.from_list([{column: row[column] for column in columns} for row in rows])
