"""Rows that come with types: Parquet files and data sets of the hub."""

import datetime
import decimal
import gzip
import json
import struct

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rlcore.errors import ConfigError
from tasks.intake.reading import Line, lines, sources

ROW = {"prompt": "é"}


def write(path, content):
    path.write_bytes(content)
    return path


def read(path):
    return [line for source in sources(path) for line in lines(source)]


def places(rows):
    """Line, column and rule of each fault."""
    return [(line.fault.line, line.fault.column, line.fault.rule) for line in rows if line.fault]


def table(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_nested_columns_dates_and_decimals_of_parquet_are_written_as_json(tmp_path):
    columns = {
        "messages": [[{"role": "user", "content": "é"}], None],
        "day": [datetime.date(2026, 1, 2), None],
        "price": [decimal.Decimal("1.50"), None],
        "label": [True, False],
    }
    path = table(tmp_path / "a.parquet", columns)
    write(tmp_path / "b.parquet.gz", gzip.compress(path.read_bytes()))
    path.rename(tmp_path / "c.jsonl")
    first = {"messages": columns["messages"][0], "day": "2026-01-02", "price": "1.50", "label": True}
    second = dict.fromkeys(first) | {"label": False}
    expected = [
        Line(n, json.dumps(row, ensure_ascii=False).encode() + b"\n", row, None) for n, row in ((1, first), (2, second))
    ]
    assert read(tmp_path / "b.parquet.gz") == read(tmp_path / "c.jsonl") == expected


def test_what_json_cannot_hold_costs_its_row(tmp_path):
    offsets = struct.pack("<4i", 0, 1, 2, 3)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"a\xe9b")]
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, buffers)
    path = table(tmp_path / "a.parquet", {"prompt": texts, "score": [float("nan"), 1.0, 2.0]})
    rows = read(path)
    assert places(rows) == [(1, None, "number"), (2, None, "encoding")]
    assert rows[2].row == {"prompt": "b", "score": 2.0}
    assert json.loads(rows[0].raw)["prompt"] == "a"
    assert places(read(table(path, {"picture": [b"\x00"]}))) == [(1, None, "parquet")]


def test_a_damaged_row_group_costs_its_rows(tmp_path):
    path = table(tmp_path / "a.parquet", {"n": list(range(10))}, row_group_size=4, write_page_checksum=True)
    start = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[start + 40] ^= 0xFF
    rows = read(write(path, bytes(content)))
    assert [line.number for line in rows] == list(range(1, 11))
    assert [line.row.get("n") for line in rows] == [0, 1, 2, 3, None, None, None, None, 8, 9]
    assert places(rows) == [(number, None, "parquet") for number in (5, 6, 7, 8)]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"prompt\na\n", b"PAR1" + b"x" * 90 + b"PAR1"])
def test_what_is_no_parquet_file_says_so(tmp_path, content):
    [line] = read(write(tmp_path / "a.parquet", content))
    assert (line.fault.rule, line.fault.ends_file) == ("parquet", True)
    [line] = read(write(tmp_path / "b.parquet.gz", gzip.compress(content)[:-4]))
    assert (line.fault.rule, line.fault.ends_file) == ("gzip", True)


def test_two_columns_of_one_name_are_refused(tmp_path):
    columns = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    parquet.write_table(columns, tmp_path / "a.parquet")
    [line] = read(tmp_path / "a.parquet")
    assert (line.fault.rule, line.fault.ends_file) == ("duplicate_key", True)


# The hub.


def test_a_data_set_of_the_hub_is_streamed(monkeypatch):
    asked = []

    def load(name, *, split, streaming):
        asked.append((name, split, streaming))
        return iter([ROW, {"prompt": "b"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    for name in ("owner/name", "owner/name:test"):
        [source] = sources(name)
        assert (str(source.path), source.format) == (name, "hub")
        assert [(line.number, line.row) for line in lines(source)] == [(1, ROW), (2, {"prompt": "b"})]
    assert asked == [("owner/name", "train", True), ("owner/name", "test", True)]


def test_a_data_set_that_breaks_off_keeps_what_was_read(monkeypatch):
    def rows():
        yield ROW
        raise ConnectionError("the line is down\nTraceback")

    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: rows())
    first, last = read("owner/name")
    assert first.row == ROW
    assert (last.fault.rule, last.fault.line, last.fault.ends_file) == ("hub", 2, True)
    assert last.fault.message == "The data set broke off: the line is down. Read it again."


def test_a_data_set_that_is_not_there_is_named(monkeypatch):
    def load(*names, **options):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'owner/name' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    [source] = sources("owner/name")
    with pytest.raises(ConfigError, match="owner/name: Dataset 'owner/name' doesn't exist on the Hub. Expected a file"):
        list(lines(source))
