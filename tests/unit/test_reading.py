"""What to read, and in which encoding; rows that are too long."""

import gzip
import json
import os

import pytest

from rlcore.errors import ConfigError, DataError
from tasks.intake.reading import chunks, csv_rows, find, json_array, lines, sources, streams

ROW = {"prompt": "é"}
ROW_LINE = '{"prompt": "é"}\n'


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path, encoding="utf-8"):
    return [line for source in sources(path, encoding) for line in lines(source)]


def places(rows):
    """Line, column and rule of each fault."""
    return [(line.fault.line, line.fault.column, line.fault.rule) for line in rows if line.fault]


# What to read.


def test_a_folder_gives_its_files_in_the_order_of_their_names(tmp_path):
    for name, content in (("b.csv", "prompt\né\n"), ("a.jsonl.gz", gzip.compress(ROW_LINE.encode())), ("c.json", "[]")):
        write(tmp_path / name, content)
    for name in (".hidden", "_SUCCESS"):
        write(tmp_path / name, "no rows")
    found = sources(tmp_path)
    assert [(source.path.name, source.format, source.is_packed) for source in found] == [
        ("a.jsonl.gz", "jsonl", True), ("b.csv", "csv", False), ("c.json", "json", False),
    ]  # fmt: skip
    assert [line.row for line in read(tmp_path)] == [ROW, ROW]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a.txt", ConfigError, r"a\.txt: expected a file whose name ends in \.jsonl, \.json, \.csv, \.parquet"),
        ("folder", ConfigError, "inner: expected a file whose name ends in"),
        ("pipe.jsonl", ConfigError, r"pipe\.jsonl: found a pipe or a device, which cannot be read twice"),
        ("links", ConfigError, r"links/a\.jsonl: found a link that leads nowhere, expected a file"),
        ("none", DataError, "none: the folder is empty"),
        ("missing.jsonl", ConfigError, "missing.jsonl: no such file or folder"),
        ("none/missing", ConfigError, "missing: no such file or folder"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, name, error, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", ROW_LINE)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.jsonl").symlink_to("absent.jsonl")
    with pytest.raises(error, match=message):
        sources(name)


def test_a_file_that_must_not_be_read_says_so(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", ROW_LINE)

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(DataError, match=r"a\.jsonl: Permission denied\. Expected a file that can be read"):
        sources(path)


def test_a_kind_has_one_place_in_a_data_set(tmp_path):
    assert find(tmp_path, "prompts") is None
    place = write(tmp_path / "prompts.csv.gz", "")
    write(tmp_path / "preferences.jsonl", "")
    assert find(tmp_path, "prompts") == place
    (tmp_path / "prompts").mkdir()
    with pytest.raises(ConfigError, match=r"found prompts and prompts\.csv\.gz, expected one place for prompts"):
        find(tmp_path, "prompts")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
@pytest.mark.parametrize("content", ["", " \n\r\n\t\n"])
def test_a_file_of_blanks_has_no_rows(tmp_path, name, content):
    assert read(write(tmp_path / name, content)) == []
    assert read(write(tmp_path / "packed.csv.gz", gzip.compress(content.encode()))) == []


def test_pieces_end_with_the_row_that_reaches_a_limit_and_come_twice_alike(tmp_path):
    [source] = sources(write(tmp_path / "a.jsonl", ROW_LINE * 5))
    size = len(ROW_LINE.encode())
    assert [len(piece) for piece in chunks(source, max_rows=2)] == [2, 2, 1]
    assert [len(piece) for piece in chunks(source, max_bytes=2 * size + 1)] == [3, 2]
    assert list(chunks(source)) == list(chunks(source))


# Encodings.


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.csv.gz"])
def test_an_encoding_that_is_named_is_read(tmp_path, encoding, name):
    content = ("prompt\né\n" if ".csv" in name else ROW_LINE).encode(encoding)
    path = write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    assert [(line.row, line.raw.decode()) for line in read(path, encoding)] == [(ROW, ROW_LINE)]


def test_an_encoding_without_a_mark_in_its_name_bears_one(tmp_path):
    path = write(tmp_path / "a.jsonl", b"\xff\xfe" + ROW_LINE.encode("utf-16-le"))
    assert [line.raw.decode() for line in read(path, "utf-16-le")] == [ROW_LINE]
    assert places(read(path, "utf-16-be")) == [(1, None, "encoding")]


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (ROW_LINE.encode("utf-16"), "utf-8", "utf-16 by its byte order mark FF FE at byte 0, expected utf-8"),
        (ROW_LINE.encode("utf-16-le"), "utf-8", "a zero at byte 1, as in utf-16-le, expected UTF-8"),
        (ROW_LINE.encode("utf-16-le"), "utf-16", "no byte order mark, expected one of utf-16. Say utf-16-le"),
        (ROW_LINE.encode("utf-8-sig"), "latin-1", "utf-8 by its byte order mark EF BB BF at byte 0"),
        (ROW_LINE.encode("latin-1"), "utf-8", "byte 0xE9 at byte 12 of the file, expected UTF-8. Save the file as UTF"),
        (b'\n{"prompt": "\x81"}\n', "cp1252", "byte 0x81, which is none of cp1252"),
        (ROW_LINE.encode("utf-16")[:-1], "utf-16", "truncated data at byte 32, expected utf-16"),
    ],
)
def test_the_message_names_the_byte_and_what_to_do(tmp_path, content, encoding, message):
    fault = read(write(tmp_path / "a.jsonl", content), encoding)[-1].fault
    assert fault.rule == "encoding"
    assert message in fault.message


def test_a_row_outside_of_its_encoding_costs_no_other(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"prompt": "\xe9"}\n{"prompt": "\xe9\x81"}\n{"prompt": "\xe9"}')
    rows = read(path, "cp1252")
    assert [line.row for line in rows] == [ROW, {}, ROW]
    assert rows[1].fault.at(path).startswith(f"{path}:2:14: Found byte 0x81")


@pytest.mark.parametrize("encoding", ["utf-9", "hex", ""])
def test_an_unknown_encoding_is_refused(tmp_path, encoding):
    with pytest.raises(ConfigError, match=f"Found the encoding '{encoding}', expected one that Python knows"):
        sources(write(tmp_path / "a.jsonl", ROW_LINE), encoding)


def test_a_packed_file_that_is_cut_in_a_character_has_one_fault(tmp_path):
    content = gzip.compress(ROW_LINE.encode("utf-16-le")) + gzip.compress(b"x")
    [line, last] = read(write(tmp_path / "a.jsonl.gz", content[:-4]), "utf-16-le")
    assert (line.row, last.fault.rule, last.fault.line) == (ROW, "gzip", 2)


# Long rows.


@pytest.mark.parametrize(
    ("name", "content", "faults"),
    [
        ("a.jsonl", ROW_LINE + '{"prompt": "' + "x" * 200 + '"}\n' + ROW_LINE, [(2, 1, "row_size")]),
        ("a.csv", 'prompt\né\n"' + "x\n" * 100 + "é\n", [(3, 1, "row_size")]),
        ("a.json", '[\n{"prompt": "é"},\n{"prompt": "' + "x" * 200 + '"},\n{"prompt": "é"}]', [(3, 1, "row_size")]),
    ],
)
def test_a_row_beyond_the_limit_is_a_fault_with_a_short_copy(tmp_path, monkeypatch, name, content, faults):
    for module in (streams, json_array, csv_rows):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 100)
    rows = read(write(tmp_path / name, content))
    assert places(rows) == faults
    assert max(len(line.raw) for line in rows) <= 1000
    assert rows[0].row == rows[-1].row == ROW


@pytest.mark.parametrize("piece", [1, 2, 7])
def test_a_list_reads_alike_whatever_the_size_of_the_pieces(tmp_path, monkeypatch, piece):
    rows = [{"prompt": 'a "b" \\ {[é', "n": [{"r": []}, {}]}, {}, {"x": None}]
    path = write(tmp_path / "a.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n[{'a'},\n{}]")
    whole = read(path)
    monkeypatch.setattr(json_array, "_PIECE", piece)
    assert read(path) == whole
    assert [line.row for line in whole] == [*rows, {}, {}]
    assert places(whole) == [(16, 3, "json")]
