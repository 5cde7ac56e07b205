"""The tables of trainers: needed columns only, whatever else a row holds."""

import pytest

from rlcore.errors import DataError
from tasks.records.artifacts import write_rows
from tasks.rows import seeing_rows, training_rows, training_splits, with_whole_rows


def test_an_extra_column_of_mixed_type_does_not_stop_training(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"prompt": "a", "answer": 3}, {"prompt": "b", "answer": "three"}, {"answer": [3], "prompt": "c"}])
    assert training_rows(path, ("prompt",)).to_list() == [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]


def test_no_row_is_an_empty_table(tmp_path):
    write_rows(tmp_path / "rows.jsonl", [])
    assert len(training_rows(tmp_path / "rows.jsonl", ("prompt",))) == 0


def test_a_row_without_a_needed_column_is_named(tmp_path):
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "a", "response": "b"}, {"prompt": "a"}])
    with pytest.raises(DataError, match="row 2 lacks response"):
        training_rows(tmp_path / "rows.jsonl", ("prompt", "response"))


@pytest.fixture
def paths(tmp_path):
    """Files of two splits; the rows of a column have different types, one of them nested."""
    files = {split: tmp_path / f"{split}.jsonl" for split in ("train", "validation")}
    write_rows(files["train"], [{"prompt": "a", "answer": 3}, {"prompt": "b", "answer": ["x", {"y": None}]}])
    write_rows(files["validation"], [{"prompt": "c", "answer": "ü"}])
    return files


def test_a_split_without_rows_is_left_out(paths):
    assert {split: len(table) for split, table in training_splits(paths, ("prompt",)).items()} == {
        "train": 2,
        "validation": 1,
    }
    write_rows(paths["validation"], [])
    assert list(training_splits(paths, ("prompt",))) == ["train"]


def test_a_reward_function_sees_each_row_as_it_was_written(paths):
    tables = with_whole_rows(training_splits(paths, ("prompt",)), paths)
    seen = []

    def reward(prompts, responses, metadata):
        seen.extend(metadata)
        return [float(len(response)) for response in responses]

    rows = [*tables["train"], *tables["validation"]]
    metadata = [{"row": row["row"]} for row in rows]
    assert seeing_rows(reward)(["a", "b", "c"], ["", "1", "22"], metadata) == [0.0, 1.0, 2.0]
    assert [row["answer"] for row in seen] == [3, ["x", {"y": None}], "ü"]
