import math

import pytest

from tasks.intake.kinds import KINDS
from tasks.intake.repeats.splits import SplitTable, normalised
from tasks.intake.schemas import Breach, breaches, explained

GOOD = {"prompt": "a", "chosen": "b", "rejected": "c"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def found(kind: str, *rows: dict, max_characters: int = 100, off: frozenset[str] = frozenset()) -> list[tuple]:
    return [tuple(breach) for breach in breaches(KINDS[kind], rows, max_characters, off)]


GOOD_ROWS = {
    "preferences": [
        GOOD,
        {**GOOD, "split": "held_out", "group": "g", "other": [1]},
        {"prompt": [{"role": "system", "content": "s"}, user("a")], "chosen": [assistant("b")], "rejected": "c"},
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
        {"prompt": "a", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
    ],
    "demonstrations": [
        {"prompt": "a", "response": "b"},
        {"messages": [user("a"), assistant("b"), user("c"), assistant("d")]},
        {"messages": [user("a"), assistant("b"), {"role": "tool", "content": "1"}, assistant("d")]},
    ],
    "prompts": [{"prompt": "a", "answer": 3}, {"prompt": [user("a"), assistant("b"), user("c")]}],
    "unpaired": [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": False}],
    "scores": [
        {"prompt": "a", "response": "b", "scores": {"helpful": 1, "honest": None}},
        {"prompt": "a", "response": "b", "scores": [0.5, -1]},
    ],
    "cases": [{"prompt": "a", "case_idx": 0, "tests": ["assert True"]}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_good_rows_break_no_rule(kind: str):
    assert found(kind, *GOOD_ROWS[kind]) == []
    assert found(kind) == []


@pytest.mark.parametrize("value", [None, 7, True, 1.5, math.nan, {"a": 1}])
def test_what_is_no_text_is_found_and_not_turned_into_text(value: object):
    assert found("preferences", GOOD, {**GOOD, "chosen": value}) == [(1, "chosen", "is_text")]


@pytest.mark.parametrize("value", [[], ["a"], [{"role": "assistant"}], [{"role": "assistant", "content": None}]])
def test_a_list_that_is_no_messages_is_found(value: object):
    assert found("preferences", GOOD, {**GOOD, "chosen": value}) == [(1, "chosen", "messages")]


def test_a_missing_column_counts_as_no_text():
    assert found("demonstrations", {"prompt": "a"}) == [(0, "response", "is_text")]
    assert found("preferences", {"chosen": "a", "rejected": "b"}) == [(0, "prompt", "is_text")]


def test_all_faults_of_a_row_are_found_at_once():
    # One fault must not hide another: the first column misses, the second has the wrong type, the third is empty.
    faults = found("preferences", GOOD, {"prompt": None, "chosen": 7, "rejected": ""}, {**GOOD, "prompt": " "})
    assert sorted(faults) == [
        (1, "chosen", "is_text"),
        (1, "prompt", "is_text"),
        (1, "rejected", "not_empty"),
        (2, "prompt", "not_empty"),
    ]


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000", "\u200b", "\ufeff \u2060", "\u00ad"])
def test_texts_without_a_visible_character_are_empty(blank: str):
    assert found("prompts", {"prompt": blank}) == [(0, "prompt", "not_empty")]


def test_the_length_limit_is_inclusive():
    assert found("prompts", {"prompt": "x" * 100}) == []
    assert found("prompts", {"prompt": "x" * 101}) == [(0, "prompt", "max_characters")]


def test_equal_answers_are_reported_once():
    assert found("preferences", {**GOOD, "rejected": "b"}) == [(0, "chosen, rejected", "different_answers")]
    assert found("preferences", {**GOOD, "chosen": " Ｂ", "rejected": "b"}) == [
        (0, "chosen, rejected", "different_answers_normalised")
    ]


def test_two_missing_answers_are_missing_not_equal():
    rules = [rule for _, _, rule in found("preferences", {"prompt": "a", "chosen": None, "rejected": None})]
    assert rules == ["is_text", "is_text"]


@pytest.mark.parametrize(
    ("kind", "changes", "field", "rule"),
    [
        ("preferences", {"rejected": [user("c")]}, "rejected", "role_order"),
        ("preferences", {"prompt": [user("a"), assistant("b")]}, "prompt", "role_order"),
        ("preferences", {"prompt": [user("a"), user("b")]}, "prompt", "role_order"),
        ("preferences", {"prompt": [user("a"), {"role": "system", "content": "s"}]}, "prompt", "role_order"),
        ("preferences", {"prompt": [{"role": "human", "content": "a"}]}, "prompt", "known_role"),
        ("preferences", {"chosen": [assistant("  ")]}, "chosen", "not_empty"),
        (
            "preferences",
            {"chosen": [user("a"), assistant("b")], "rejected": [user("A"), assistant("c")]},
            "prompt, chosen, rejected",
            "shared_prompt",
        ),
        ("preferences", {"chosen": [user("z"), assistant("b")]}, "prompt, chosen, rejected", "shared_prompt"),
        ("preferences", {"group": 7}, "group", "is_text"),
    ],
)
def test_conversations_have_an_order(kind: str, changes: dict, field: str, rule: str):
    assert found(kind, {**GOOD, **changes}) == [(0, field, rule)]


def test_answers_without_any_prompt_are_found():
    row = {"chosen": [assistant("b")], "rejected": [assistant("c")]}
    assert found("preferences", row) == [(0, "prompt, chosen, rejected", "shared_prompt")]


@pytest.mark.parametrize("label", [1, 0, "true", None, "yes", [True]])
def test_a_label_is_true_or_false_and_nothing_like_it(label: object):
    row = {"prompt": "a", "completion": "b", "label": label}
    assert found("unpaired", row) == [(0, "label", "label")]


@pytest.mark.parametrize("scores", [None, [], [None], [True], ["1"], [math.inf], {"a": "good"}, 3])
def test_scores_are_finite_numbers(scores: object):
    assert found("scores", {"prompt": "a", "response": "b", "scores": scores}) == [(0, "scores", "scores")]


@pytest.mark.parametrize("number", [-1, 1.0, "0", True, None])
def test_a_case_has_a_whole_number(number: object):
    assert found("cases", {"prompt": "a", "case_idx": number}) == [(0, "case_idx", "case_idx")]


@pytest.mark.parametrize("split", ["test", "", 3, ["train"]])
def test_unknown_splits_are_found(split: object):
    assert found("prompts", {"prompt": "a", "split": split}) == [(0, "split", "known_split")]


def test_a_rule_that_is_off_is_not_asked():
    assert found("preferences", {**GOOD, "rejected": "b"}, off=frozenset({"different_answers"})) == []


def test_the_report_says_what_was_found():
    turned = {**GOOD, "rejected": [user("c")]}
    assert explained(turned, Breach(0, "rejected", "role_order")) == (
        "The last message is of user, expected assistant. Check that no columns are swapped."
    )
    assert explained({"prompt": None}, Breach(0, "prompt", "is_text")) == "Found nothing."
    assert explained({"prompt": 7}, Breach(0, "prompt", "is_text")) == "Found 7."


def test_every_fault_of_many_rows_is_found():
    rows = [{"prompt": None, "chosen": 7, "rejected": ""}] * 20_000
    assert len(found("preferences", *rows)) == 60_000


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
