"""The tables of trainers: needed columns only, whatever else a row holds."""

import pytest

from rlcore.errors import DataError
from tasks.records.artifacts import write_rows
from tasks.rows import PAIR_COLUMNS, seeing_rows, training_rows, training_splits, with_whole_rows


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


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_of_messages_what_precedes_an_answer_is_its_prompt(tmp_path):
    asked, said = say("user", "Which?"), say("assistant", "This.")
    pairs = [
        {"chosen": [asked, said], "rejected": [asked, say("assistant", "That.")]},
        {"prompt": [asked], "chosen": [said], "rejected": "None."},
        {"prompt": "Who?", "chosen": "I.", "rejected": "You."},
    ]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    assert training_rows(tmp_path / "pairs.jsonl", PAIR_COLUMNS).to_list() == [
        {"prompt": "Which?", "chosen": "This.", "rejected": "That."},
        {"prompt": "Which?", "chosen": "This.", "rejected": "None."},
        {"prompt": "Who?", "chosen": "I.", "rejected": "You."},
    ]


def test_each_answer_of_a_demonstration_is_a_row_and_all_prompts_have_one_type(tmp_path):
    turns = [say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d")]
    write_rows(tmp_path / "rows.jsonl", [{"messages": turns}, {"prompt": "e", "response": "f"}])
    assert training_rows(tmp_path / "rows.jsonl", ("prompt", "response")).to_list() == [
        {"prompt": turns[:1], "response": "b"},
        {"prompt": turns[:3], "response": "d"},
        {"prompt": [say("user", "e")], "response": "f"},
    ]


def test_messages_of_a_wrong_form_are_named_with_file_and_row(tmp_path):
    write_rows(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": [say("user", "b")], "rejected": "c"}])
    with pytest.raises(DataError, match=r"pairs.jsonl: Row 1, chosen: the last message is"):
        training_rows(tmp_path / "pairs.jsonl", PAIR_COLUMNS)
