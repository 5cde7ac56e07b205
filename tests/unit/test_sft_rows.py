"""Rows of supervised fine-tuning as tokens: what is learned, and what is context."""

import datasets
import pytest

from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.trl_trainers.sft import _splits, _tokenise
from tests.support.tiny import tiny_tokenizer

CHAT = ChatFormat(tiny_tokenizer())


def tokens(text: str) -> list[int]:
    return tiny_tokenizer()(text)["input_ids"]


def test_of_a_demonstration_the_response_and_its_end_are_learned():
    (row,) = _tokenise(datasets.Dataset.from_list([{"prompt": "2 + 2?", "response": "4"}]), CHAT, 64, "train")
    prompt = CHAT.encode_prompt("2 + 2?")
    assert row["input_ids"] == [*prompt, *tokens("4"), CHAT.end_id]
    assert row["labels"] == [-100] * len(prompt) + [*tokens("4"), CHAT.end_id]


@pytest.mark.parametrize("ending", ["", tiny_tokenizer().eos_token], ids=["open", "closed already"])
def test_of_text_without_a_prompt_every_token_is_learned_and_one_end(ending):
    text = "What is 2 plus 2? The answer is 4."
    (row,) = _tokenise(datasets.Dataset.from_list([{"text": text + ending}]), CHAT, 64, "train")
    assert row["input_ids"] == row["labels"] == [*tokens(text), CHAT.end_id]


def test_a_text_that_is_too_long_loses_its_end():
    (row,) = _tokenise(datasets.Dataset.from_list([{"text": "What is 2 plus 2?"}]), CHAT, 3, "train")
    assert row["input_ids"] == tokens("What is 2 plus 2?")[:3]


@pytest.mark.parametrize(
    "row", [{"text": "half \ud83d"}, {"prompt": "Which?", "response": "half \ud83d"}], ids=["text", "response"]
)
def test_a_row_that_is_no_text_is_named(row):
    rows = [dict.fromkeys(row, "whole"), row]
    with pytest.raises(DataError, match=r"Split validation, row 1: Found the lone surrogate U\+D83D at position 5"):
        _tokenise(rows, CHAT, 64, "validation")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"validation": datasets.Dataset.from_dict({"text": ["one"]})}, "Found the splits ..validation"),
        (datasets.Dataset.from_dict({"text": ["one"]}), "Found a Dataset, expected train among the splits"),
        ({"train": datasets.Dataset.from_dict({"text": []})}, "Found 0 demonstrations in the split train"),
    ],
)
def test_data_without_rows_to_train_on_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        _splits(data)


def test_rows_without_their_columns_are_named():
    with pytest.raises(DataError, match="Split train: found the columns prompt, answer, expected prompt and response"):
        _splits({"train": datasets.Dataset.from_dict({"prompt": ["Which?"], "answer": ["this"]})})
