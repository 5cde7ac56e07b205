"""Preference pairs as tokens: borders, cuts, ends, and what is refused."""

import logging
from typing import Any

import pytest

from rlcore.configs import DPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.dpo.dataset import pairs_of
from rlcore.errors import ConfigError, DataError
from tests.support.letters import BEGIN, END, LETTERS, ids, letter_tokenizer
from tests.support.tiny import tiny_tokenizer


def one_pair(prompt: Any, chosen: Any, rejected: Any, **settings: Any) -> tuple[list[int], list[int], list[int]]:
    """Tokens of prompt, chosen and rejected response of a dataset with one pair."""
    tokenizer = settings.pop("tokenizer", letter_tokenizer())
    item = PreferenceDataset([prompt], [chosen], [rejected], tokenizer, **settings)[0]
    start = item["prompt_length"]
    assert item["chosen_input_ids"][:start].tolist() == item["prompt_input_ids"].tolist()
    assert item["rejected_input_ids"][:start].tolist() == item["prompt_input_ids"].tolist()
    sides = (item[f"{side}_input_ids"][start:].tolist() for side in ("chosen", "rejected"))
    return item["prompt_input_ids"].tolist(), *sides


def test_no_token_spans_the_border_even_where_the_texts_would_merge():
    # "x y" is one token of the joined text
    tokenizer = letter_tokenizer(merges=(("x", " "), ("x ", "y")))
    joined, space = 3 + len(LETTERS) + 1, 3 + len(LETTERS)
    assert tokenizer("ax y")["input_ids"] == [*ids("a"), joined]
    assert one_pair("ax ", "y", "z", tokenizer=tokenizer) == ([*ids("a"), space], [*ids("y"), END], [*ids("z"), END])


@pytest.mark.parametrize(
    ("prompt", "response", "kept_prompt", "kept_response"),
    [
        ("abcdef", "xy", "abcdef", [*ids("xy"), END]),  # 6 + 3 <= 10: nothing is cut
        ("abcdef", "uvwxy", "bcdef", ids("uvwxy")),  # 6 + 6 > 10: 5 + 5, the end token is cut
        ("abc", "klmnopqrstu", "abc", ids("klmnopq")),  # 3 + 12 > 10: 3 + 7
        ("abcdefghijkl", "x", "efghijkl", [*ids("x"), END]),  # 12 + 2 > 10: the prompt may keep 8
    ],
)
def test_a_prompt_loses_its_beginning_and_only_as_much_as_it_must(prompt, response, kept_prompt, kept_response):
    found = one_pair(prompt, response, response, max_length=10, max_prompt_length=5)
    assert found == (ids(kept_prompt), kept_response, kept_response)


def test_both_responses_follow_the_prompt_that_the_longer_one_leaves():
    # 8 + 6 > 10: the prompt keeps 5, although 8 + 2 of the other response would fit
    found = one_pair("abcdefgh", "uvwxy", "z", max_length=10, max_prompt_length=5)
    assert found == (ids("defgh"), ids("uvwxy"), [*ids("z"), END])
    found = one_pair("abcdefgh", "z", "uvwxy", max_length=10, max_prompt_length=5)
    assert found == (ids("defgh"), [*ids("z"), END], ids("uvwxy"))


def test_the_begin_token_comes_once_and_survives_a_cut():
    tokenizer = letter_tokenizer(begin=True)
    found = one_pair("abcdef", "uvwxy", "z", tokenizer=tokenizer, max_length=10, max_prompt_length=5)
    assert found == ([BEGIN, *ids("cdef")], ids("uvwxy"), [*ids("z"), END])
    assert one_pair("ab", "x", "y", tokenizer=tokenizer)[0] == [BEGIN, *ids("ab")]


def test_a_response_ends_with_one_end_token_whoever_wrote_it():
    assert one_pair("ab", "x<e>", "y")[1:] == ([*ids("x"), END], [*ids("y"), END])


def test_what_the_template_writes_comes_once_and_a_tokenizer_without_bos_adds_none():
    tokenizer = letter_tokenizer(begin=True)
    tokenizer.chat_template = "{% for message in messages %}<b>{{ message['content'] }}{% endfor %}"
    assert one_pair("a", "x<e>", "y", tokenizer=tokenizer) == ([BEGIN, *ids("a")], [*ids("x"), END], [*ids("y"), END])
    tokens = sum(one_pair("a", "x", "y", tokenizer=letter_tokenizer()), [])
    assert tokens == [*ids("a"), *ids("x"), END, *ids("y"), END]


def test_an_item_has_the_documented_keys_and_no_padding():
    item = PreferenceDataset(["ab"], ["xyz"], ["z"], letter_tokenizer())[0]
    shapes = {name: tuple(value.shape) for name, value in item.items() if name != "prompt_length"}
    assert item["prompt_length"] == 2
    assert shapes == {
        "prompt_input_ids": (2,),
        "prompt_attention_mask": (2,),
        "chosen_input_ids": (6,),
        "chosen_attention_mask": (6,),
        "rejected_input_ids": (4,),
        "rejected_attention_mask": (4,),
    }
    assert all(item[name].all() for name in shapes if name.endswith("mask"))


def test_chat_messages_equal_the_text_they_hold():
    user, good, bad = (
        {"role": role, "content": text} for role, text in (("user", "a?"), ("assistant", "b"), ("assistant", "c"))
    )
    tokenizer = tiny_tokenizer()
    text = one_pair("a?", "b", "c", tokenizer=tokenizer)
    assert one_pair([user], [good], [bad], tokenizer=tokenizer) == text
    # the prompt repeated in front of the answers is not scored a second time
    assert one_pair([user], [user, good], [user, bad], tokenizer=tokenizer) == text


def test_a_row_of_the_wrong_form_is_named():
    user, good = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
    cases = [
        ([user], [good], [user], "Row 1, rejected: the last message is .*user"),
        ([user], [{"role": "user", "content": "other"}, good], [good], "Row 1, chosen: the messages before"),
        ([good], "b", "c", "Row 1: Found the messages"),
        ([user], None, "c", "Row 1, chosen: found None"),
        ("  ", "b", "c", "Row 1, prompt: found '  '"),
        (5, "b", "c", "Row 1, prompt: found 5, expected text or chat messages"),
        ("a?", ["b"], "c", "Row 1, chosen: found .*expected text or chat messages"),
    ]
    for prompt, chosen, rejected, message in cases:
        with pytest.raises(DataError, match=message):
            PreferenceDataset(["x", prompt], ["y", chosen], ["z", rejected], tiny_tokenizer())


def test_lists_of_the_wrong_form_are_refused():
    with pytest.raises(DataError, match="4 prompts, 4 chosen and 1 rejected"):
        PreferenceDataset(["a"] * 4, ["x"] * 4, ["y"], letter_tokenizer())


@pytest.mark.parametrize(("max_length", "max_prompt_length"), [(8, 8), (8, 0), (4, 9)])
def test_lengths_without_room_for_a_response_are_refused(max_length: int, max_prompt_length: int):
    with pytest.raises(ConfigError, match="a response keeps a token"):
        PreferenceDataset(["a"], ["x"], ["y"], letter_tokenizer(), max_length, max_prompt_length)


def test_rows_that_teach_nothing_are_counted(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        dataset = PreferenceDataset(["a", "b", "c"], ["x", "", "zz"], ["y", "y", "zz"], letter_tokenizer())
    assert (len(dataset), dataset.dropped_rows, dataset.identical_rows) == (2, [1], [2])
    assert dataset.prompts == ["a", "c"]
    assert "Dropped 1 of 3 rows" in caplog.text
    assert "1 of 3 rows have the same tokens" in caplog.text
    # lengths with the end token: (2 + 3) / 2 both
    assert dataset.figures() == {
        "data/chosen_length_mean": 2.5,
        "data/rejected_length_mean": 2.5,
        "data/identical_fraction": 0.5,
        "data/dropped_count": 1.0,
    }


def test_a_dataset_without_a_trainable_row_is_an_error():
    with pytest.raises(DataError, match="no trainable tokens in 2 of 2 rows"):
        PreferenceDataset(["a", "b"], ["", "x"], ["y", ""], letter_tokenizer())


def test_the_hash_follows_tokens_and_order():
    def sha(chosen: list[str], rejected: list[str]) -> str:
        return PreferenceDataset(["a", "b"], chosen, rejected, letter_tokenizer()).sha256()

    hashes = {sha(["x", "y"], ["u", "v"]), sha(["y", "x"], ["u", "v"]), sha(["u", "v"], ["x", "y"])}
    assert len(hashes) == 3
    assert sha(["x", "y"], ["u", "v"]) in hashes


def test_a_batch_pads_with_the_given_id_and_masks_by_length():
    # id 0 is a real token here and stays in the mask; 50 fills
    dataset = PreferenceDataset(["ab", "c"], ["xyz", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=50)
    assert batch.input_ids.tolist() == [
        [*ids("abxyz"), END],
        [*ids("cx"), END, 50, 50, 50],
        [*ids("abx"), END, 50, 50],
        [*ids("cxy"), END, 50, 50],
    ]
    assert batch.prompt_lengths.tolist() == [2, 1, 2, 1]
    assert batch.response_mask.sum(dim=1).tolist() == [4, 2, 2, 3]
    assert dataset.length(0) == 6


def test_a_tokenizer_knows_its_own_tokens():
    dataset = PreferenceDataset(["a"], ["x"], ["y"], letter_tokenizer())
    assert dataset.is_written_by(letter_tokenizer())
    assert not dataset.is_written_by(letter_tokenizer(merges=(("x", "y"),)))
    other_end = letter_tokenizer(begin=True)
    other_end.eos_token = "<b>"
    assert not dataset.is_written_by(other_end)


def test_columns_of_a_split_become_pairs(caplog: pytest.LogCaptureFixture):
    settings = DPOConfig(model_name="none", max_length=8, max_prompt_length=4)
    columns = {"prompt": ["abcdefghij"], "chosen": ["x"], "rejected": ["y"], "system": ["be brief"]}
    with caplog.at_level(logging.WARNING):
        dataset = pairs_of(columns, letter_tokenizer(), settings)
    assert "The columns system are not read" in caplog.text
    # 8 tokens, 2 of them for the response
    assert dataset.prompt_ids(0) == ids("efghij")
    with pytest.raises(DataError, match="Found no column rejected"):
        pairs_of({"prompt": ["a"], "chosen": ["b"]}, letter_tokenizer(), settings)
