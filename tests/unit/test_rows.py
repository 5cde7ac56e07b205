"""The tables of trainers: needed columns only, whatever else a row holds."""

import pytest

from rlcore.errors import DataError
from tasks.records.artifacts import write_rows
from tasks.rows import training_rows


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
