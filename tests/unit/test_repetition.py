from tasks.intake.kinds import KINDS
from tasks.intake.repeats.duplicates import Repetitions
from tasks.intake.repeats.leaks import NearPrompts, Overlap
from tasks.intake.repeats.near_duplicates import NearDuplicates

WORDS = [f"word{number}" for number in range(16)]


def repeated(kind: str, *rows: dict) -> list[list[tuple[str, int]]]:
    seen = Repetitions(KINDS[kind])
    return [[tuple(each) for each in seen.add(row, row)] for row in rows]


def pair(prompt: str, chosen: str, rejected: str) -> dict[str, str]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_a_repetition_names_the_first_such_row():
    rows = [pair("a", "b", "c"), pair("A ", "b", "c"), pair("a", "b", "c"), pair("A ", "b", "c"), pair("x", "b", "c")]
    assert repeated("preferences", *rows) == [
        [], [("duplicate_normalised", 0)], [("duplicate", 0)], [("duplicate", 1)], [],
    ]  # fmt: skip


def test_the_opposite_order_is_a_contradiction_whatever_the_spelling():
    assert repeated("preferences", pair("a", "b", "c"), pair("a", "C", "b")) == [[], [("contradiction", 0)]]


def test_texts_are_not_confused_where_their_borders_move():
    assert repeated("preferences", pair("a", "bc", "d"), pair("ab", "c", "d")) == [[], []]


def test_one_completion_with_two_labels_is_a_contradiction():
    row = {"prompt": "a", "completion": "b"}
    found = repeated("unpaired", {**row, "label": True}, {**row, "label": False}, {**row, "label": True})
    assert found == [[], [("contradiction", 0)], [("duplicate", 0), ("contradiction", 1)]]


def test_other_scores_of_one_text_are_another_row():
    row = {"prompt": "a", "response": "b"}
    assert repeated("scores", {**row, "scores": [1]}, {**row, "scores": [2]}) == [[], []]


def test_nearly_equal_texts_are_found_and_others_are_not():
    text = " ".join(WORDS * 5)
    near = NearDuplicates(0.8)
    near.add([text, "something else entirely that has no run of words in common", text + " seventeen"])
    near.add(["", text.upper()])
    found = [(first, second) for first, second, _ in near.pairs()]
    assert found == [(0, 2), (0, 4)]


def test_the_estimate_is_near_the_jaccard_index():
    # 60 runs of words, 45 of them shared: 45 / (60 + 60 - 45) = 0.6
    words = [f"w{number}" for number in range(62)]
    near = NearDuplicates(0.01)
    near.add([" ".join(words), " ".join(words[:47] + [f"x{number}" for number in range(15)])])
    ((_, _, similarity),) = near.pairs()
    assert abs(similarity - 0.6) < 0.2


def test_overlap_counts_the_prompts_to_measure_on_that_were_trained_on():
    overlap = Overlap()
    for prompt, split in (("a", "train"), ("B", "train"), ("a", "held_out"), ("b", "validation"), ("c", None)):
        overlap.add(prompt, split)
    assert overlap.as_json() == {
        "held_out_prompts": 2,
        "exact": {"count": 1, "share": 0.5},
        "normalised": {"count": 2, "share": 1.0},
    }


def test_nearly_equal_prompts_in_two_splits_are_a_leak():
    text = " ".join(WORDS * 3)
    near = NearPrompts(0.8)
    for key, prompt in enumerate((text, text + " more", text + " yet more", "another")):
        near.add(prompt, key, f"a:{key + 1}")
    (leak,) = near.leaks({0: "train", 1: "held_out", 2: "train", 3: "held_out"})
    assert leak["places"] == {"train": "a:1", "held_out": "a:2"}
    assert leak["match"] == "near"
