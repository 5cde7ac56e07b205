"""Rows of training data from files or the hub, under the column names that they have there."""

import csv
import gzip
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from rlcore.errors import ConfigError, DataError

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
"""What a file name may end with, and its format. `.gz` may follow."""

VALID_SPLIT = "valid"
"""The file that is taken for validation rows where no other is named."""

_NO_BLANK = re.compile(r"\S")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def read_splits(
    data_path: str | Path, train_split: str, valid_split: str | None, *, is_measured: bool = True
) -> datasets.DatasetDict:
    """The splits `train` and, where there are rows for it, `validation`. Nothing is read but these files.

    Args:
        data_path: a file with the rows to train on, a folder with one file for each split, or a data set of the hub.
        train_split, valid_split: names of the files in the folder, without their ending, or of the splits; a
            valid_split of None is VALID_SPLIT where the folder has it.
        is_measured: whether validation rows are wanted at all.

    Raises:
        ConfigError: there is no such file or data set, or more than one.
        DataError: a file cannot be read, or holds no row.
    """
    path = Path(data_path)
    if path.is_file() and (train_split, valid_split) != ("train", None):
        raise ConfigError(
            f"Found the file {path} with train_split={train_split!r} and valid_split={valid_split!r}, which name files "
            "of a folder. Name the folder, or leave the splits out."
        )
    if not path.exists() and _HUB_NAME.fullmatch(str(data_path)) and not _ending(path):
        wanted = {"train": train_split} | ({"validation": valid_split} if valid_split and is_measured else {})
        return datasets.DatasetDict({name: _from_hub(str(data_path), split) for name, split in wanted.items()})
    files = {"train": path if path.is_file() else _file_of(path, train_split)}
    if is_measured and path.is_dir() and has_validation(path, valid_split):
        files["validation"] = _file_of(path, valid_split or VALID_SPLIT)
    return datasets.DatasetDict({split: _read(file) for split, file in files.items()})


def has_validation(data_path: str | Path, valid_split: str | None) -> bool:
    """Whether validation rows are named, or lie where they are taken without a name."""
    return valid_split is not None or bool(_candidates(Path(data_path), VALID_SPLIT))


def _file_of(folder: Path, split: str) -> Path:
    endings = ", ".join(FORMATS)
    if not folder.is_dir():
        raise ConfigError(
            f"Found no file or folder {str(folder)!r}. Pass data_path: a file ending in {endings}, a folder with "
            f"{split}{next(iter(FORMATS))} or the like, or a data set of the hub, owner/name."
        )
    files = _candidates(folder, split)
    if len(files) != 1:
        found = " and ".join(file.name for file in files) or "none"
        raise ConfigError(
            f"{folder}: found {found}, expected one file `{split}` ending in {endings}, or these with .gz. Name the "
            "file in data_path."
        )
    return files[0]


def _candidates(folder: Path, split: str) -> list[Path]:
    names = [f"{split}{ending}{packed}" for ending in FORMATS for packed in ("", ".gz")]
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def _ending(file: Path) -> str:
    """The ending of a file name that says its format, without .gz; empty where there is none."""
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return suffix if suffix in FORMATS else ""


def _read(file: Path) -> datasets.Dataset:
    ending = _ending(file)
    if not ending:
        raise ConfigError(
            f"Found {file}, expected a name ending in {', '.join(FORMATS)}, or these with .gz. Convert or rename the "
            "file."
        )
    with tempfile.TemporaryDirectory() as folder, _unpacked(file, Path(folder) / f"rows{ending}") as plain:
        if not plain.stat().st_size:
            raise DataError(f"{file}: the file is empty, expected at least one row.")
        try:
            return _READERS[FORMATS[ending]](plain)
        except (
            datasets.exceptions.DatasetGenerationError, csv.Error, OSError, ValueError, TypeError, OverflowError,
            RecursionError,
        ) as error:  # fmt: skip
            reason = str(error.__cause__ or error).splitlines()[0].rstrip(".!")
            raise DataError(f"{file}: {reason}. Expected at least one row; mend or replace the file.") from error


def _from_json(file: Path) -> datasets.Dataset:
    """Rows in a list, or one after the other. A text stays one, also where it looks like a date or a number."""
    text, decoder = file.read_text(encoding="utf-8-sig"), json.JSONDecoder()
    rows: list[Any] = []
    place = _after_blanks(text, 0)
    while place < len(text):
        found, end = decoder.raw_decode(text, place)
        rows += found if isinstance(found, list) else [found]
        place = _after_blanks(text, end)
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not row:
            raise ValueError(f"row {index} is {row!r:.80}, not an object with columns")
    if not rows:
        raise ValueError("no row")
    columns = {name: _column([row.get(name) for row in rows]) for name in dict.fromkeys(chain.from_iterable(rows))}
    return datasets.Dataset.from_dict(columns, on_mixed_types="use_json")


def _column(values: list[Any]) -> list[Any]:
    """The values of one type: text, where some are text and some are not, or where a number has no 64 bits for it."""
    kinds = {type(value) for value in values if value is not None}
    is_mixed = len(kinds) > 1 and kinds != {int, float}
    is_large = int in kinds and any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values)
    if not kinds <= {str, int, float, bool} or not (is_mixed or is_large):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _after_blanks(text: str, place: int) -> int:
    """Where the next value begins, or the end of the text."""
    following = _NO_BLANK.search(text, place)
    return len(text) if following is None else following.start()


def _from_parquet(file: Path) -> datasets.Dataset:
    # The rows are in memory; in the usual cache a copy of every version of the file would stay.
    with tempfile.TemporaryDirectory() as folder:
        rows = datasets.Dataset.from_parquet(str(file), cache_dir=folder, keep_in_memory=True)
    assert isinstance(rows, datasets.Dataset)
    if not len(rows):
        raise ValueError("no row")
    return rows


def _from_csv(file: Path) -> datasets.Dataset:
    """Every cell as the text that it is: a number is an answer like another, an empty cell an empty text."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has other columns than the first line")
            rows.append(row)
    if not rows:
        raise ValueError("no row below the names of the columns")
    return datasets.Dataset.from_list(rows)


_READERS: dict[str, Callable[[Path], datasets.Dataset]] = {
    "json": _from_json,
    "csv": _from_csv,
    "parquet": _from_parquet,
}


@contextmanager
def _unpacked(file: Path, place: Path) -> Iterator[Path]:
    """The content of a file at `place`. The file's own name may be one that datasets takes for a pattern."""
    if file.suffix != ".gz":
        place.symlink_to(file.resolve())
        yield place
        return
    try:
        with gzip.open(file) as packed, place.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: {error}. Expected a whole gzip file; pack or copy it again.") from error
    yield place


def _from_hub(name: str, split: str) -> datasets.Dataset:
    try:
        rows = datasets.load_dataset(name, split=split)
    except (datasets.exceptions.DatasetNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{name}: {str(error).splitlines()[0]} Expected a file, a folder, or a data set of the hub with the split "
            f"{split!r}."
        ) from error
    if not len(rows):
        raise DataError(f"{name}, split {split}: found no row, expected at least one.")
    return rows
