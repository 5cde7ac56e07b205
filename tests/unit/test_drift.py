"""What differs between two sets of data, in numbers worked out by hand, and when that is worth a word."""

import random

import pytest

from rlcore.errors import DataError
from tasks.intake.reporting.drift import compare, divergence, in_words, read_report, worst
from tasks.intake.reporting.profile import WORDS, Profile
from tasks.records.artifacts import write_json

EQUAL_LENGTH = "abcde"


def report(rows, kind="preferences"):
    profile = Profile()
    profile.add(kind, rows)
    return {"profile": profile.as_json()}


def pairs(prompts, chosen="longer yes", rejected="no", **more):
    return [{"prompt": prompt, "chosen": chosen, "rejected": rejected, **more} for prompt in prompts]


def names(start, end):
    return [f"prompt number {number:06}" for number in range(start, end)]


def found(new, old):
    return {shift.measure: shift for shift in compare(report(new), report(old))}


def test_the_same_data_are_fine():
    rows = pairs(names(0, 300))
    shifts = compare(report(rows), report(rows))
    assert {shift.level for shift in shifts} == {"fine"}
    assert worst(shifts) == "fine"
    assert [shift.value for shift in shifts] == [0.0] * len(shifts)


def test_new_and_lost_prompts_and_rows_are_shares_of_their_own_side():
    # 400 of 500 prompts are new, 900 of 1000 earlier ones are gone, and so are half of the rows.
    shifts = found(pairs(names(900, 1400)), pairs(names(0, 1000)))
    assert (shifts["new prompts"].value, shifts["new prompts"].level) == (0.8, "look")
    assert (shifts["lost prompts"].value, shifts["lost prompts"].level) == (0.9, "alarm")
    assert (shifts["rows"].value, shifts["rows"].level) == (0.5, "alarm")
    assert shifts["rows"].sentence == "preferences: 500 usable rows, 1,000 before (-50%)."
    assert shifts["lost prompts"].sentence == "preferences: 90.0% of the earlier prompts are gone."


def test_an_estimated_share_is_said_with_its_error():
    # 2400 of 4000 are new; the sample is k / n = 51 % of them: the error is sqrt(0.24 / 2048 * 0.49) = 0.8 %.
    sentence = found(pairs(names(1600, 5600)), pairs(names(0, 4000)))["new prompts"].sentence
    assert "± 0.8% of the prompts are new" in sentence


def test_the_distance_of_lengths_is_the_largest_difference_of_the_shares_below():
    # Half of the new prompts have 5 characters, the others 40; all earlier ones have 40.
    new = pairs([EQUAL_LENGTH] * 500 + ["x" * 40] * 500)
    shift = found(new, pairs(["y" * 40] * 1000))["length of prompt"]
    assert (shift.value, shift.level) == (0.5, "alarm")


def test_medians_are_in_characters():
    sentence = found(pairs(["12345"] * 100), pairs(["1234567"] * 100))["length of prompt"].sentence
    assert sentence.startswith("preferences: the median prompt has 5 characters, 7 before;")


@pytest.mark.parametrize(
    ("first", "second", "bits"),
    [
        ({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}, 0.0),
        ({"a": 1.0}, {"b": 1.0}, 1.0),
        # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4): H(m) - (0 + 1) / 2 = 0.8113 - 0.5
        ({"a": 1.0}, {"a": 0.5, "b": 0.5}, 0.3113),
        # What is not listed is one more word: (1/2, 1/2) both times.
        ({"a": 0.5}, {"a": 0.5}, 0.0),
    ],
)
def test_vocabularies_are_bits_apart(first, second, bits):
    assert divergence(first, second) == pytest.approx(bits, abs=5e-5)
    assert divergence(second, first) == pytest.approx(bits, abs=5e-5)


def test_a_word_right_below_the_end_of_a_full_list_makes_no_distance():
    listed = {f"w{number}": 1 / (WORDS + 1) for number in range(WORDS + 1)}
    first, second = ({word: share for word, share in listed.items() if word != left_out} for left_out in ("w0", "w1"))
    assert divergence(first, second) == pytest.approx(0.0, abs=1e-9)


def test_another_vocabulary_is_an_alarm_that_names_the_words():
    new = pairs(["Go on"] * 500, chosen="the sum equals seven")
    shift = found(new, pairs(["Go on"] * 500, chosen="once upon a time"))["vocabulary"]
    assert shift.level == "alarm"
    # Each pair has 7 words, 4 of them in the chosen answer: 1/7 = 14.29 %.
    assert "most changed: a -14.29%, equals +14.29%" in shift.sentence


def test_length_bias_moves_by_its_difference():
    # Chosen longer in 80 % of the pairs, 50 % before, where equal lengths count half.
    new = pairs(names(0, 800)) + pairs(names(800, 1000), chosen="a", rejected="bb")
    shift = found(new, pairs(names(0, 1000), chosen="aa", rejected="bb"))["length bias"]
    assert shift.value == pytest.approx(0.3)
    assert shift.level == "alarm"
    assert shift.sentence == "preferences: the chosen answer is the longer one in 80.0% of the pairs, 50.0% before."


def test_labels_move_by_half_of_the_sum_of_their_differences():
    def rows(true, false):
        return [{"prompt": "a", "completion": "b", "label": label} for label in [True] * true + [False] * false]

    (shift,) = (
        shift
        for shift in compare(report(rows(600, 400), "unpaired"), report(rows(500, 500), "unpaired"))
        if shift.measure == "labels label"
    )
    assert (shift.value, shift.level) == (pytest.approx(0.1), "look")


def test_labels_that_one_side_lacks_are_worth_a_look():
    shift = found(pairs(names(0, 100), objective="helpful"), pairs(names(0, 100)))["labels objective"]
    assert (shift.level, shift.sentence) == (
        "look",
        "preferences: labels objective: the earlier rows have none.",
    )


def test_kinds_that_came_and_went():
    shifts = compare(report([{"prompt": "a"}], "prompts"), report(pairs(["a"])))
    assert [(shift.kind, shift.level) for shift in shifts] == [("prompts", "look"), ("preferences", "alarm")]


def test_two_halves_of_the_same_small_data_are_fine_but_for_their_prompts():
    draw = random.Random(5)
    words = [f"w{number}" for number in range(50)]
    for _ in range(5):
        rows = [
            {
                "prompt": " ".join(draw.choices(words, k=draw.randint(3, 30))),
                "chosen": " ".join(draw.choices(words, k=draw.randint(1, 60))),
                "rejected": " ".join(draw.choices(words, k=draw.randint(1, 60))),
            }
            for _ in range(120)
        ]
        shifts = compare(report(rows[:60]), report(rows[60:]))
        assert worst(shift for shift in shifts if "prompts" not in shift.measure) == "fine"


def test_nothing_to_compare():
    assert compare({"profile": {}}, {"profile": {}}) == []
    assert in_words([]) == "nothing to compare"


def test_the_worst_comes_first_in_words():
    lines = in_words(compare(report(pairs(names(0, 100))), report(pairs(names(90, 1000))))).splitlines()
    assert [line.split()[0] for line in lines][:2] == ["alarm", "alarm"]
    assert lines[-1].startswith("fine   preferences:")


@pytest.mark.parametrize("content", [[], {"counts": {}}, {"profile": {"preferences": {"rows": 1}}}])
def test_a_file_that_is_no_report_is_refused(tmp_path, content):
    path = tmp_path / "old.json"
    write_json(path, content)
    with pytest.raises(DataError, match=r"old\.json: found no profile of data, expected a validation\.json\."):
        read_report(path)


def test_a_packed_file_and_a_folder_are_no_report(tmp_path):
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b\x08\xff")
    for name in ("packed.gz", ""):
        with pytest.raises(DataError, match="found no profile of data"):
            read_report(tmp_path / name)


def test_a_report_is_read(tmp_path):
    write_json(tmp_path / "validation.json", report(pairs(["a"])))
    assert worst(compare(read_report(tmp_path / "validation.json"), report(pairs(["a"])))) == "fine"
