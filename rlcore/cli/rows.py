"""Rows of training data from files, under the column names that a trainer reads."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import datasets

from rlcore.errors import ConfigError, DataError

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
"""What a file name may end with, and who reads it."""


def read_splits(data_path: str | Path, train_split: str, valid_split: str | None) -> datasets.DatasetDict:
    """The splits `train` and, where there is a valid_split, `validation`.

    Args:
        data_path: a file with the rows to train on, or a folder with one file for each split.
        train_split, valid_split: names of the files in the folder, without their ending.

    Raises:
        ConfigError: there is no such file, or more than one.
        DataError: a file cannot be read, or holds no row.
    """
    path = Path(data_path)
    if path.is_file() and (train_split, valid_split) != ("train", None):
        raise ConfigError(
            f"Found the file {path} with train_split={train_split!r} and valid_split={valid_split!r}, which name files "
            "of a folder. Name the folder, or leave the splits out."
        )
    files = {"train": path if path.is_file() else _file_of(path, train_split)}
    if valid_split is not None:
        files["validation"] = _file_of(path, valid_split)
    return datasets.DatasetDict({split: _read(file) for split, file in files.items()})


def rename_columns(rows: datasets.Dataset, wanted: Mapping[str, str]) -> datasets.Dataset:
    """The rows with the column wanted[name] under `name`; it takes the place of a column that has this name already.

    Raises:
        DataError: a column is not there. Names the ones that are.
    """
    missing = sorted(set(wanted.values()) - set(rows.column_names))
    if missing:
        raise DataError(
            f"Found the columns {', '.join(rows.column_names)}, expected {', '.join(missing)}. Name the columns with "
            "text_column, prompt_text_column and rejected_text_column."
        )
    replaced = [name for name, found in wanted.items() if name != found and name in rows.column_names]
    rows = rows.remove_columns([name for name in replaced if name not in wanted.values()])
    return rows.rename_columns({found: name for name, found in wanted.items() if found != name})


def _file_of(folder: Path, split: str) -> Path:
    endings = ", ".join(FORMATS)
    if not folder.is_dir():
        raise ConfigError(f"Found no file or folder {str(folder)!r}. Pass data_path: a file ending in {endings}.")
    files = sorted(folder / f"{split}{ending}" for ending in FORMATS if (folder / f"{split}{ending}").is_file())
    if len(files) != 1:
        found = " and ".join(file.name for file in files) or "none"
        raise ConfigError(
            f"{folder}: found {found}, expected one file `{split}` ending in {endings}. Name the file in data_path."
        )
    return files[0]


def _read(file: Path) -> datasets.Dataset:
    if file.suffix not in FORMATS:
        raise ConfigError(f"Found {file}, expected a name ending in {', '.join(FORMATS)}. Convert or rename the file.")
    if not file.stat().st_size:
        raise DataError(f"{file}: the file is empty, expected at least one row.")
    # The rows are in memory; in the usual cache a copy of every version of the file would stay.
    with tempfile.TemporaryDirectory() as cache:
        try:
            rows = datasets.load_dataset(
                FORMATS[file.suffix],
                data_files={"train": str(file)},
                split="train",
                cache_dir=cache,
                keep_in_memory=True,
            )
        except (datasets.exceptions.DatasetGenerationError, OSError, ValueError) as error:
            reason = str(error.__cause__ or error).splitlines()[0].rstrip(".!")
            raise DataError(f"{file}: {reason}. Expected at least one row; mend or replace the file.") from error
    return rows
