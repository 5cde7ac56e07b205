"""Rows from files of every format, and columns under the names that a trainer reads."""

import datasets
import pytest

from rlcore.cli.rows import read_splits, rename_columns
from rlcore.errors import ConfigError, DataError

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]


def write(path, rows=ROWS):
    table = datasets.Dataset.from_list(rows)
    if path.suffix == ".csv":
        table.to_csv(path)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, lines=path.suffix == ".jsonl")
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_each_format_gives_the_same_rows(tmp_path, ending):
    assert list(read_splits(write(tmp_path / f"rows{ending}"), "train", None)["train"]) == ROWS


def test_a_folder_has_a_file_for_each_split(tmp_path):
    write(tmp_path / "train.jsonl")
    write(tmp_path / "valid.csv", ROWS[:1])
    (tmp_path / "notes.txt").write_text("not read")
    assert list(read_splits(tmp_path, "train", None)) == ["train"]
    splits = read_splits(tmp_path, "train", "valid")
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 2, "validation": 1}


def test_a_file_that_was_changed_is_read_anew_and_no_copy_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = write(tmp_path / "rows.csv")
    assert len(read_splits(path, "train", None)["train"]) == 2
    write(path, ROWS[:1])
    assert len(read_splits(path, "train", None)["train"]) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.jsonl", ""), ("header.csv", "text,n\n"), ("cut.jsonl", '{"text": "on'), ("none.json", "[]")],
)
def test_a_file_without_whole_rows_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=name):
        read_splits(tmp_path / name, "train", None)


def test_what_cannot_be_found_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no file or folder"):
        read_splits(tmp_path / "nothing", "train", None)
    (tmp_path / "rows.txt").write_text("one")
    with pytest.raises(ConfigError, match=r"expected a name ending in \.jsonl"):
        read_splits(tmp_path / "rows.txt", "train", None)
    with pytest.raises(ConfigError, match="found none, expected one file `train`"):
        read_splits(tmp_path, "train", None)
    write(tmp_path / "train.csv")
    write(tmp_path / "train.jsonl")
    with pytest.raises(ConfigError, match=r"found train.csv and train.jsonl"):
        read_splits(tmp_path, "train", None)
    with pytest.raises(ConfigError, match="valid_split='valid'"):
        read_splits(tmp_path / "train.csv", "train", "valid")


def test_columns_get_the_names_of_the_trainer():
    rows = datasets.Dataset.from_dict({"q": ["ask"], "good": ["yes"], "bad": ["no"], "chosen": ["old"], "n": [1]})
    renamed = rename_columns(rows, {"prompt": "q", "chosen": "good", "rejected": "bad"})
    assert renamed[0] == {"prompt": "ask", "chosen": "yes", "rejected": "no", "n": 1}


def test_two_columns_may_be_exchanged():
    rows = datasets.Dataset.from_dict({"chosen": ["no"], "rejected": ["yes"]})
    assert rename_columns(rows, {"chosen": "rejected", "rejected": "chosen"})[0] == {"rejected": "no", "chosen": "yes"}


def test_a_missing_column_is_named_beside_those_that_there_are():
    rows = datasets.Dataset.from_dict({"q": ["ask"], "text": ["yes"]})
    with pytest.raises(DataError, match=r"Found the columns q, text, expected prompt, rejected\."):
        rename_columns(rows, {"prompt": "prompt", "chosen": "text", "rejected": "rejected"})
