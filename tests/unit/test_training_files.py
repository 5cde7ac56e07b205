"""Rows from files of every format, and the columns that they have there."""

import gzip
import json
import os
import shutil

import datasets
import pytest

from rlcore.cli import rows
from rlcore.cli.rows import FORMATS, read_splits
from rlcore.errors import ConfigError, DataError

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]


def write(path, content=ROWS):
    table = datasets.Dataset.from_list(content)
    if path.suffix == ".csv":
        table.to_csv(path)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, lines=path.suffix == ".jsonl")
    return path


def packed(path):
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as file:
        shutil.copyfileobj(plain, file)
    path.unlink()
    return path.with_name(f"{path.name}.gz")


@pytest.mark.parametrize("pack", [lambda path: path, packed], ids=["plain", "packed"])
@pytest.mark.parametrize("ending", FORMATS)
def test_each_format_gives_the_same_rows(tmp_path, ending, pack):
    found = list(read_splits(pack(write(tmp_path / f"rows{ending}")), "train", None)["train"])
    # in a CSV file everything is text
    assert found == ([{"text": row["text"], "n": str(row["n"])} for row in ROWS] if ending == ".csv" else ROWS)


def test_answers_of_digits_and_empty_cells_stay_text(tmp_path):
    (tmp_path / "rows.csv").write_text("prompt,response\n2+2,4\nnothing,\nmissing,NA\n")
    assert read_splits(tmp_path / "rows.csv", "train", None)["train"]["response"] == ["4", "", "NA"]


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_texts_that_look_like_dates_or_numbers_stay_texts(tmp_path, ending):
    written = {"answer": ["007", 4, "null", None], "day": ["2020-01-01"] * 4, "updated_at": ["1"] * 4, "n": [2**70] * 4}
    lines = [dict(zip(written, row, strict=True)) for row in zip(*written.values(), strict=True)]
    text = json.dumps(lines, indent=1) if ending == ".json" else "\n".join(map(json.dumps, lines))
    (tmp_path / f"rows{ending}").write_text(text, encoding="utf-8-sig")
    found = read_splits(tmp_path / f"rows{ending}", "train", None)["train"]
    assert found[:] == written | {"answer": ["007", "4", "null", None], "n": [str(2**70)] * 4}


def test_a_column_that_later_rows_add_is_there(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": "x"}\n{"a": [1], "b": 2}\n')
    assert list(read_splits(tmp_path / "rows.jsonl", "train", None)["train"]) == [
        {"a": "x", "b": None}, {"a": [1], "b": 2},
    ]  # fmt: skip


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_name_may_hold_the_characters_of_a_pattern(tmp_path, ending):
    assert len(read_splits(write(tmp_path / f"a[1]*{ending}"), "train", None)["train"]) == 2


def test_a_folder_has_a_file_for_each_split(tmp_path):
    write(tmp_path / "train.jsonl")
    packed(write(tmp_path / "held.csv", ROWS[:1]))
    (tmp_path / "notes.txt").write_text("not read")
    assert list(read_splits(tmp_path, "train", None)) == ["train"]
    splits = read_splits(tmp_path, "train", "held")
    assert {name: len(found) for name, found in splits.items()} == {"train": 2, "validation": 1}


def test_valid_rows_are_read_where_they_are_and_wanted(tmp_path):
    write(tmp_path / "train.jsonl")
    write(tmp_path / "valid.parquet", ROWS[:1])
    assert list(read_splits(tmp_path, "train", None)) == ["train", "validation"]
    assert list(read_splits(tmp_path, "train", None, is_measured=False)) == ["train"]


def test_nothing_but_the_named_files_is_opened(tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "deeper", tmp_path / "train"):
        path.mkdir(exist_ok=True)
        write(path / "train.jsonl")
        write(path / "test.jsonl")
    opened = []
    read = rows._read
    monkeypatch.setattr(rows, "_read", lambda file: opened.append(file) or read(file))
    read_splits(tmp_path, "train", None)
    assert opened == [tmp_path / "train.jsonl"]


def test_a_file_that_was_changed_is_read_anew_and_no_copy_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = write(tmp_path / "rows.csv")
    assert len(read_splits(path, "train", None)["train"]) == 2
    write(path, ROWS[:1])
    assert len(read_splits(path, "train", None)["train"]) == 1
    assert len(read_splits(packed(path), "train", None)["train"]) == 1
    assert os.listdir(tmp_path) == ["rows.csv.gz"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.jsonl", b""),
        ("header.csv", b"text,n\n"),
        ("wide.csv", b"text,n\none,1,2\n"),
        ("narrow.csv", b"text,n\none\n"),
        ("latin.csv", b"text\n\xe9\n"),
        ("cut.jsonl", b'{"text": "on'),
        ("none.json", b"[]"),
        ("blank.jsonl", b"\n\n"),
        ("nothing.json", b"null"),
        ("numbers.jsonl", b"1\n2\n"),
        ("no-columns.jsonl", b"{}\n"),
        ("latin.jsonl", b'{"text": "\xe9"}\n'),
        ("half-a-character.jsonl", b'{"text": "\\ud800"}\n'),
        ("deep.json", b"[" * 100_000),
        ("broken.parquet", b"PAR1 no table PAR1"),
        ("plain.jsonl.gz", b'{"text": "one"}'),
        ("cut.csv.gz", gzip.compress(b"text\n" + bytes(range(65, 91)) * 99, mtime=0)[:40]),
        ("empty.json.gz", gzip.compress(b"", mtime=0)),
    ],
)
def test_a_file_without_whole_rows_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_splits(tmp_path / name, "train", None)


def test_what_cannot_be_found_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no file or folder"):
        read_splits(tmp_path / "nothing", "train", None)
    with pytest.raises(ConfigError, match="no file or folder"):
        read_splits("folder/nothing.jsonl", "train", None)
    (tmp_path / "rows.txt").write_text("one")
    with pytest.raises(ConfigError, match=r"expected a name ending in \.jsonl"):
        read_splits(tmp_path / "rows.txt", "train", None)
    with pytest.raises(ConfigError, match="found none, expected one file `train`"):
        read_splits(tmp_path, "train", None)
    write(tmp_path / "train.csv")
    packed(write(tmp_path / "train.jsonl"))
    with pytest.raises(ConfigError, match=r"found train.csv and train.jsonl.gz"):
        read_splits(tmp_path, "train", None)
    with pytest.raises(ConfigError, match="valid_split='valid'"):
        read_splits(tmp_path / "train.csv", "train", "valid")


def test_a_name_with_an_owner_is_a_data_set_of_the_hub(monkeypatch):
    asked = []

    def load(name, split):
        asked.append((name, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(read_splits("owner/set", "train", None)) == ["train"]
    assert list(read_splits("owner/set", "train_sft", "test")) == ["train", "validation"]
    assert asked == [("owner/set", "train"), ("owner/set", "train_sft"), ("owner/set", "test")]


@pytest.mark.parametrize(
    "error",
    [datasets.exceptions.DatasetNotFoundError("Dataset 'owner/set' doesn't exist"), ValueError("Unknown split")],
)
def test_what_the_hub_does_not_have_is_refused_by_name(monkeypatch, error):
    def load(name, split):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ConfigError, match=f"owner/set: {error}.* the split 'train'"):
        read_splits("owner/set", "train", None)
