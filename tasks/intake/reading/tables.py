"""Parquet files and data sets of the hub: rows with types, of which JSON has not all."""

import datetime
import decimal
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from rlcore.errors import ConfigError
from tasks.intake.reading.lines import Fault, Line, Source, as_raw
from tasks.intake.reading.streams import Stream, opened_bytes
from tasks.records.wording import first_line

DEFAULT_SPLIT = "train"
"""Of a data set of the hub whose name says none."""

_BATCH_ROWS = 1000
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20
_NO_JSON = "Leave the column out, or convert it."


def parquet_rows(source: Source) -> Iterator[Line]:
    """The rows of a file. Those of a row group that cannot be read are faults, and reading goes on with the next group.

    Raises:
        DataError: the file is not there or must not be read.
    """
    import pyarrow
    from pyarrow import parquet

    with opened_bytes(source) as stream, _seekable(stream) as file:
        if stream.damage:
            yield from stream.last_line(1)
            return
        try:
            table = parquet.ParquetFile(
                file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
            )
        except (pyarrow.ArrowException, OSError) as error:
            yield _lost(1, "parquet", f"Found no whole Parquet file: {first_line(str(error))}. Copy it again.")
            return
        names = table.schema_arrow.names
        if repeated := [name for name in names if names.count(name) > 1]:
            yield _lost(1, "duplicate_key", f"Found two columns {repeated[0]!r}, expected one. Rename one of them.")
            return
        number = 1
        for group in range(table.num_row_groups):
            end = number + table.metadata.row_group(group).num_rows
            try:
                for batch in table.iter_batches(_batch_rows(table, group), row_groups=[group], use_threads=False):
                    for row in range(len(batch)):
                        yield _line(batch, row, number)
                        number += 1
            except (pyarrow.ArrowException, OSError) as error:
                message = f"Found row group {group} of the file damaged: {first_line(str(error))}. Copy it again."
                for lost in range(number, end):
                    yield Line(lost, b"", {}, Fault("parquet", lost, None, message))
            number = end


def hub_rows(source: Source) -> Iterator[Line]:
    """The rows of a split of a data set of the hub, fetched as they are read.

    Raises:
        ConfigError: there is no such data set or split, or no way to it.
    """
    import datasets

    name, _, split = str(source.path).partition(":")
    split = split or DEFAULT_SPLIT
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ConfigError(
            f"{name}: {first_line(str(error))}. Expected a file, a folder, or a data set of the hub "
            f"with the split {split!r}."
        ) from error
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            yield line_of(row, number, "hub")
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        yield _lost(number + 1, "hub", f"The data set broke off: {first_line(str(error))}. Read it again.")


def line_of(row: Mapping[str, Any], number: int, rule: str) -> Line:
    """A row with types as a line: dates and decimals become text.

    Args:
        number: of the row, from 1.
        rule: that a value breaks which JSON cannot hold.
    """
    try:
        plain = {name: _plain(value, name, rule) for name, value in row.items()}
    except _NoJSON as error:
        shown = json.dumps(row, ensure_ascii=False, default=str).encode()
        return Line(number, shown, {}, Fault(error.rule, number, None, str(error)))
    return Line(number, as_raw(plain), plain, None)


class _NoJSON(Exception):
    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def _plain(value: Any, column: str, rule: str) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoJSON("number", f"Found {value} in {column}, expected a number that JSON has. Write null.")
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner, column, rule) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, column, rule) for inner in value]
    raise _NoJSON(rule, f"Found {type(value).__name__} in {column}, which JSON cannot hold. {_NO_JSON}")


def _line(batch: Any, row: int, number: int) -> Line:
    # Row by row: bytes that are no text cost their own row, not the batch.
    try:
        [values] = batch.slice(row, 1).to_pylist()
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02X} in a text, expected UTF-8"
        return Line(number, b"", {}, Fault("encoding", number, None, f"Found {found}. Export the file again."))
    return line_of(values, number, "parquet")


def _batch_rows(table: Any, group: int) -> int:
    metadata = table.metadata.row_group(group)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(1, metadata.total_byte_size)))


@contextmanager
def _seekable(stream: Stream) -> Iterator[BinaryIO]:
    """The file to jump about in: Parquet is read from its end."""
    if stream.file.seekable():
        yield stream.file
        return
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(stream.file, unpacked)
        unpacked.seek(0)
        yield unpacked


def _lost(number: int, rule: str, message: str) -> Line:
    return Line(number, b"", {}, Fault(rule, number, None, message, ends_file=True))
