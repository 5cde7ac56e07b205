"""Profiles of data: what is counted, and that neither order nor size matters."""

import json
import random

import pytest

from tasks.intake.reporting import profile as profile_module
from tasks.intake.reporting.profile import PARTS, Profile
from tasks.intake.reporting.prompt_sketch import from_hex


def profile_of(kind, rows, chunk=1000):
    profile = Profile()
    for start in range(0, len(rows), chunk):
        profile.add(kind, rows[start : start + chunk])
    return profile.as_json()[kind]


def pair(prompt="Who?", chosen="I am.", rejected="No", **more):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


def random_rows(count, seed=0):
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(200)]
    weights = [1 / (number + 1) for number in range(200)]
    return [pair(f"prompt {number}", " ".join(draw.choices(words, weights, k=30)), "no") for number in range(count)]


def test_words_are_counted_in_all_texts_without_case_and_punctuation():
    found = profile_of("preferences", [pair("The cat.", "A cat!", "(the) dog")])
    assert found["words"] == {"cat": 0.3333333, "the": 0.3333333, "a": 0.1666667, "dog": 0.1666667}
    assert found["words_counted"] == 6


def test_letters_of_scripts_without_blanks_are_words():
    found = profile_of("prompts", [{"prompt": "日本語 GPU日本"}])
    assert found["words"] == {"日": 0.3333333, "本": 0.3333333, "gpu": 0.1666667, "語": 0.1666667}


def test_lengths_are_counted_in_characters_by_the_lower_edge_of_their_bin():
    # Bins from 8 on grow by 19 %: 8, 10, 11, 13.
    found = profile_of("prompts", [{"prompt": "x" * length} for length in (0, 1, 7, 8, 9, 10, 12)])
    assert found["lengths"] == {
        "prompt": {"unit": "characters", "counts": {"0": 1, "1": 1, "7": 1, "8": 2, "10": 1, "11": 1}}
    }


def test_labels_objectives_scores_and_the_longer_answer_are_counted():
    rows = [pair(objective="helpful"), pair(chosen="N", objective="harmless"), pair(chosen="No"), pair()]
    assert profile_of("preferences", rows)["label_balance"] == {
        "objective": {"harmless": 1, "helpful": 1},
        "longer_answer": {"chosen": 2, "equal": 1, "rejected": 1},
    }
    unpaired = [{"prompt": "a", "completion": "b", "label": label} for label in (True, True, False)]
    assert profile_of("unpaired", unpaired)["label_balance"] == {"label": {"false": 1, "true": 2}}
    scores = [{"prompt": "a", "response": "b", "scores": scores} for scores in ({"fun": 1, "fair": None}, [0.5, 2])]
    assert profile_of("scores", scores)["label_balance"] == {"scored": {"0": 1, "1": 1, "fun": 1}}


def test_more_labels_than_are_told_apart_are_counted_together(monkeypatch):
    monkeypatch.setattr(profile_module, "LABELS", 2)
    found = profile_of("preferences", [pair(objective=str(number)) for number in range(5)])
    assert found["label_balance"]["objective"] == {"(other)": 3, "0": 1, "1": 1}


def test_neither_order_nor_pieces_change_a_profile(monkeypatch):
    monkeypatch.setattr(profile_module, "WORD_LIMIT", 10_000)
    rows = random_rows(3000)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert profile_of("preferences", shuffled, chunk=77) == profile_of("preferences", rows)


def test_where_words_are_too_many_a_sample_of_the_rows_has_nearly_the_same_shares(monkeypatch):
    rows = random_rows(3000)
    whole = profile_of("preferences", rows)
    monkeypatch.setattr(profile_module, "WORD_LIMIT", 20_000)
    sample = profile_of("preferences", rows)
    assert sample["words_counted"] <= 20_000 < whole["words_counted"]
    # w0 is 16 % of the words; of 10,000 or more its share has an error of at most 0.4 %.
    assert sample["words"]["w0"] == pytest.approx(whole["words"]["w0"], abs=0.016)


def test_a_profile_is_a_few_kilobytes_whatever_the_rows():
    rows = [pair(f"p {number}", " ".join(f"v{number}-{each}" for each in range(20))) for number in range(2500)]
    found = profile_of("preferences", rows)
    assert found.keys() == PARTS
    assert len(found["words"]) == 500
    assert len(from_hex(found["prompt_sketch"])) == 2048
    assert len(json.dumps(found)) < 60_000


def test_half_a_surrogate_pair_in_a_label_leaves_a_text_that_can_be_written():
    found = profile_of("preferences", [pair(chosen="\ud800 x", objective="\ud800")])
    json.dumps(found, ensure_ascii=False).encode("utf-8")
