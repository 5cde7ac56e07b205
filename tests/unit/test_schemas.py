import math

import pytest

from tasks.intake.schemas import MESSAGES, breaches
from tasks.intake.splits import SplitTable, normalised

GOOD = {"prompt": "a", "chosen": "b", "rejected": "c"}


def found(kind: str, *rows: dict, max_characters: int = 100) -> list[tuple]:
    table = breaches(kind, rows, max_characters)
    assert set(table["rule"]) <= set(MESSAGES)
    return list(table[["position", "field", "rule", "severity"]].itertuples(index=False, name=None))


def test_good_rows_break_no_rule():
    assert found("preferences", GOOD, {**GOOD, "split": "held_out", "group": "g", "other": [1]}) == []
    assert found("demonstrations", {"prompt": "a", "response": "b"}) == []
    assert found("prompts", {"prompt": "a", "answer": 3}) == []
    assert found("prompts") == []


@pytest.mark.parametrize("value", [None, 7, True, 1.5, math.nan, ["a"], {"a": 1}])
def test_what_is_no_text_is_found_and_not_turned_into_text(value: object):
    assert found("preferences", GOOD, {**GOOD, "chosen": value}) == [(1, "chosen", "is_text", "error")]


def test_a_missing_column_counts_as_no_text():
    assert found("demonstrations", {"prompt": "a"}) == [(0, "response", "is_text", "error")]


def test_all_faults_of_a_row_are_found_at_once():
    # One fault must not hide another: the first column misses, the second has the wrong type, the third is empty.
    faults = found("preferences", {"prompt": None, "chosen": 7, "rejected": ""})
    assert sorted(faults) == [
        (0, "chosen", "is_text", "error"),
        (0, "prompt", "is_text", "error"),
        (0, "rejected", "not_empty", "error"),
    ]


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_blank_texts_are_empty(blank: str):
    assert found("prompts", {"prompt": blank}) == [(0, "prompt", "not_empty", "error")]


def test_the_length_limit_is_inclusive():
    assert found("prompts", {"prompt": "x" * 100}) == []
    assert found("prompts", {"prompt": "x" * 101}) == [(0, "prompt", "max_characters", "error")]


def test_equal_answers_are_reported_once():
    assert found("preferences", {**GOOD, "rejected": "b"}) == [(0, "chosen, rejected", "different_answers", "error")]


def test_two_missing_answers_are_missing_not_equal():
    rules = [rule for _, _, rule, _ in found("preferences", {"prompt": "a", "chosen": None, "rejected": None})]
    assert rules == ["is_text", "is_text"]


@pytest.mark.parametrize("split", ["test", "", 3, ["train"]])
def test_unknown_splits_are_errors(split: object):
    assert found("prompts", {"prompt": "a", "split": split}) == [(0, "split", "known_split", "error")]


@pytest.mark.parametrize(
    "text", ["â€œHiâ€\x9d", "caf\u00c3\u00a9", "5 \u00c2\u00b0C", "\u00ef\u00bb\u00bfHi", "a\ufffdb"]
)
def test_mojibake_is_a_warning(text: str):
    assert found("prompts", {"prompt": text}) == [(0, "prompt", "mojibake", "warning")]


@pytest.mark.parametrize("text", ["“Hi”", "café", "5 °C", "CAFÉ»", "Ão", "naïve â la carte", "日本語", "Ünïcödé"])
def test_real_text_is_no_mojibake(text: str):
    assert found("prompts", {"prompt": text}) == []


def test_control_characters_are_a_warning_but_tabs_and_line_ends_are_not():
    assert found("prompts", {"prompt": "a\tb\r\nc"}) == []
    assert found("prompts", {"prompt": "a\x00b"}) == [(0, "prompt", "control_character", "warning")]


def split_rows(prompts: list[str], **settings: float) -> list[str]:
    table = SplitTable(**{"held_out_share": 1 / 3, "validation_share": 0.0, "seed": 0} | settings)
    keys = [table.add(prompt, None, None, "file:1") for prompt in prompts]
    splits = table.splits()
    return [splits[key] for key in keys]


def test_rows_of_one_prompt_share_a_split_whatever_their_order():
    # 6 rows of 3 prompts, a third held out: 4 rows to train on, 2 held out
    prompts = ["A", "A", "B", "B", "C", "C"]
    splits = dict(zip(prompts, split_rows(prompts), strict=True))
    assert sorted(splits.values()) == ["held_out", "train", "train"]
    for order in (prompts[::-1], ["C", "A", "B", "A", "C", "B"]):
        assert split_rows(order) == [splits[prompt] for prompt in order]


def test_the_shares_are_met_and_the_seed_matters():
    prompts = [str(number) for number in range(100)]
    first, other = (split_rows(prompts, held_out_share=0.2, validation_share=0.08, seed=seed) for seed in (0, 1))
    assert [first.count(split) for split in ("train", "validation", "held_out")] == [72, 8, 20]
    assert first != other


def test_spelling_does_not_separate_equal_prompts():
    assert normalised(" What  is\tＡ? ") == normalised("what is a?")
    assert len(set(split_rows(["Add 1.", "add  1.", "ADD 1. "], held_out_share=0.5))) == 1


def test_a_given_split_decides_for_the_group_and_the_prompt():
    table = SplitTable(held_out_share=0.9, validation_share=0.0, seed=0)
    keys = [
        table.add("p", "g", "validation", "a:1"),
        table.add("q", "g", None, "a:2"),  # the same group
        table.add("Q", None, None, "b:1"),  # the same prompt as the row before, elsewhere
    ]
    splits = table.splits()
    assert [splits[key] for key in keys] == ["validation"] * 3
    assert table.leaks() == []


def test_connected_rows_with_two_splits_are_a_leak():
    table = SplitTable(held_out_share=0.2, validation_share=0.0, seed=0)
    table.add("p", None, "train", "a:1")
    table.add("p", "g", None, "b:4")
    table.add("q", "g", "held_out", "c:2")
    table.add("z", None, "train", "a:9")
    (leak,) = table.leaks()
    assert leak.places == {"train": "a:1", "held_out": "c:2"}


def test_groups_keep_their_split_whatever_the_order_of_their_rows():
    rows = [(f"prompt {number}", f"group {number // 2}") for number in range(40)]

    def split_of(order: list[tuple[str, str]]) -> dict[str, str]:
        table = SplitTable(held_out_share=0.5, validation_share=0.0, seed=0)
        keys = {prompt: table.add(prompt, group, None, "a:1") for prompt, group in order}
        return {prompt: table.splits()[key] for prompt, key in keys.items()}

    assert split_of(rows) == split_of(rows[::-1]) == split_of(rows[::2] + rows[1::2])


def test_a_leak_is_reported_once_whatever_joins_it_later():
    # Hashes decide which of two joined names stays, so try several.
    for number in range(10):
        table = SplitTable(held_out_share=0.5, validation_share=0.0, seed=0)
        table.add(f"p {number}", None, "train", "a:1")
        table.add(f"p {number}", None, "held_out", "a:2")
        table.add(f"p {number}", f"g {number}", None, "b:1")
        (leak,) = table.leaks()
        assert leak.places == {"train": "a:1", "held_out": "a:2"}
