"""Rows of validated files as the tables that trainers take."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from rlcore.cli.conversations import MESSAGES, demonstrations, pair, question, with_one_type
from rlcore.errors import DataError
from rlcore.results import RewardSource
from tasks.records.artifacts import Split, read_rows

TRAINER_SPLITS: tuple[Split, ...] = ("train", "validation")
PAIR_COLUMNS = ("prompt", "chosen", "rejected")


def training_splits(paths: Mapping[Split, Path], columns: Sequence[str]) -> DatasetDict:
    """What a trainer gets: rows to train on and, where there are any, rows to choose a step on.

    Args:
        paths: file of each split.
        columns: that the trainer reads.

    Raises:
        DataError: see training_rows.
    """
    tables = {split: training_rows(paths[split], columns) for split in TRAINER_SPLITS}
    return DatasetDict({split: table for split, table in tables.items() if len(table)})


def training_rows(path: Path, columns: Sequence[str]) -> Dataset:
    """The columns that a trainer reads. Others stay out: a table has one type for each column, rows need not.

    Of chat messages, what precedes an answer becomes its prompt, and each answer of a demonstration a row.

    Raises:
        DataError: the file is missing, a line is no JSON object, or a row lacks a column or has the wrong form.
    """
    convert = demonstrations if "response" in columns else pair if "chosen" in columns else question
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(read_rows(path), start=1):
        if any(isinstance(value, list) for name, value in row.items() if name in (*columns, MESSAGES)):
            try:
                rows += convert(number, row)
            except DataError as error:
                raise DataError(f"{path}: {error}") from None
        elif missing := [column for column in columns if column not in row]:
            raise DataError(f"{path}: row {number} lacks {', '.join(missing)}. Run the stage validate again.")
        else:
            rows.append(row)
    return Dataset.from_list(with_one_type([{column: row[column] for column in columns} for row in rows]))


def with_whole_rows(tables: DatasetDict, paths: Mapping[Split, Path]) -> DatasetDict:
    """The same tables with each whole row, as text, in the column `row`. For `seeing_rows`."""
    return DatasetDict(
        {
            split: table.add_column("row", [json.dumps(row) for row in read_rows(paths[split])])
            for split, table in tables.items()
        }
    )


def seeing_rows(function: RewardSource) -> RewardSource:
    """The function as a reward source whose metadata are the whole rows, for tables of `with_whole_rows`."""

    def source(
        prompts: Sequence[str], responses: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None
    ) -> list[float]:
        return function(prompts, responses, [json.loads(columns["row"]) for columns in metadata or ()])

    source.__name__ = getattr(function, "__name__", type(function).__name__)
    return source
