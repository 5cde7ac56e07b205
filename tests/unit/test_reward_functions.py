"""Reward functions by formula, in every form, by name and weighted."""

import math
import subprocess
import sys

import numpy
import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.reward_functions import (
    REWARD_FUNCTIONS,
    as_reward_source,
    checked_number,
    checked_scores_or_nan,
    reward_function_named,
    weighted_sum,
)

PROMPTS, RESPONSES, ROWS = ["p", "q"], ["one", "two words"], [{"answer": 1}, {"answer": 2}]


@pytest.mark.parametrize(
    ("name", "words", "score"),
    [
        # min(words / 50, 1)
        ("default", 0, 0.0),
        ("default", 10, 0.2),
        ("default", 50, 1.0),
        ("default", 80, 1.0),
        # max(1 - |words - 50| / 50, -1)
        ("length_penalty", 0, 0.0),
        ("length_penalty", 10, 0.2),
        ("length_penalty", 50, 1.0),
        ("length_penalty", 60, 0.8),
        ("length_penalty", 100, 0.0),
        ("length_penalty", 300, -1.0),
    ],
)
def test_length_rewards(name, words, score):
    assert REWARD_FUNCTIONS[name](["p"], ["word " * words]) == pytest.approx([score])


def test_correctness_reads_the_answer_column():
    rows = [{"answer": "4"}, {"answer": 4}, {"answer": "4"}]
    assert REWARD_FUNCTIONS["correctness"](["p"] * 3, ["Answer: 4", r"\boxed{4.0}", "correct"], rows) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("rows", [None, [{"answer": "4"}, {"gold": "4"}]])
def test_correctness_names_the_column_that_is_missing(rows):
    with pytest.raises(DataError, match="'answer'"):
        REWARD_FUNCTIONS["correctness"](["p", "q"], ["4", "4"], rows)


def test_formatting_scores_a_stated_number():
    assert REWARD_FUNCTIONS["formatting"](["p"] * 3, ["Answer: 4", "4", "Answer: correct"]) == [1.0, 0.0, 0.0]


def documented(prompts, responses, metadata=None):
    return [
        len(prompt) + len(response) + row["answer"]
        for prompt, response, row in zip(prompts, responses, metadata, strict=True)
    ]


def lists_only(prompts, responses):
    return [float(len(response)) for response in responses]


def any_keywords(prompts, responses, **columns):
    return [row["answer"] for row in columns["metadata"]]


def other_names(questions, texts, rows=None):
    return [row["answer"] for row in rows]


def required_metadata(prompts, responses, metadata):
    return [row["answer"] for row in metadata]


def keywords(full_text, generated, prompt):
    return float(full_text == prompt + generated) + len(generated)


def by_position(question, text, both):
    return float(both == question + text) + len(text)


class Judge:
    def __call__(self, *, prompt, generated, full_text):
        return len(full_text)


@pytest.mark.parametrize(
    ("function", "scores"),
    [
        # "one" has 3 characters, "two words" has 9; answers are 1 and 2; prompts have one character
        (documented, [1 + 3 + 1, 1 + 9 + 2]),
        (lists_only, [3, 9]),
        (any_keywords, [1, 2]),
        (other_names, [1, 2]),
        (required_metadata, [1, 2]),
        (keywords, [1 + 3, 1 + 9]),
        (by_position, [1 + 3, 1 + 9]),
        (Judge(), [4, 10]),
        (lambda **texts: len(texts["generated"]), [3, 9]),
        (as_reward_source(documented), [5, 12]),
        (lambda prompts, responses: torch.tensor([0.5, 1.5]), [0.5, 1.5]),
        (lambda prompts, responses: numpy.array([1, 2], dtype=numpy.float32), [1, 2]),
        (lambda prompts, responses: [True, torch.tensor([2.0])], [1, 2]),
    ],
)
def test_every_form_becomes_a_source(function, scores):
    found = as_reward_source(function)(PROMPTS, RESPONSES, ROWS)
    assert found == scores
    assert all(type(score) is float for score in found)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda text: 1.0, "expected the parameters"),
        (lambda a, b, c, d: 1.0, "expected the parameters"),
        (lambda *texts: 1.0, r"\*args"),
        (torch.nn.Linear(1, 1), "RewardModelSource"),
        (3, "expected a function"),
    ],
)
def test_other_forms_are_refused(function, match):
    with pytest.raises(ConfigError, match=match):
        as_reward_source(function)


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        ([1.0], "returned 1 scores for 2 responses"),
        ([1.0, None], "response 1, returned None"),
        ([float("nan"), 1.0], "response 0, returned nan"),
        ([1.0, float("inf")], "response 1, returned inf"),
        ([1.0, "2"], "response 1, returned '2'"),
        (None, "returned None, expected a list of 2 numbers"),
        (0.5, "returned 0.5, expected a list of 2 numbers"),
    ],
)
def test_what_a_function_returns_is_checked(returned, match):
    def grade(prompts, responses):
        return returned

    with pytest.raises(DataError, match=f"^grade.*{match}"):
        as_reward_source(grade)(PROMPTS, RESPONSES)


def test_a_function_for_single_responses_is_checked_row_by_row():
    with pytest.raises(DataError, match="response 1, returned None"):
        as_reward_source(lambda a, b, c: None if " " in b else 1.0)(PROMPTS, RESPONSES)


@pytest.mark.parametrize(("prompts", "rows"), [(["p"], None), (PROMPTS, [{}])])
def test_rows_have_to_match(prompts, rows):
    for source in (as_reward_source(lists_only), REWARD_FUNCTIONS["default"], weighted_sum({"a": lists_only})):
        with pytest.raises(DataError, match="2 responses"):
            source(prompts, RESPONSES, rows)


def test_a_tensor_of_several_numbers_is_no_number():
    assert checked_number(torch.tensor(2.5), "it") == 2.5
    with pytest.raises(DataError, match="it returned"):
        checked_number(torch.tensor([1.0, 2.0]), "it")


def test_a_response_may_be_left_without_a_score_and_nothing_else_passes():
    returned = [None, float("nan"), torch.tensor(float("nan")), numpy.float64(2.0), torch.tensor([3.0])]
    found = checked_scores_or_nan(returned, 5, "it")
    assert [math.isnan(score) for score in found] == [True, True, True, False, False]
    assert found[3:] == [2.0, 3.0]
    for wrong in (torch.tensor([1.0, 2.0]), float("inf"), "nan", [None]):
        with pytest.raises(DataError, match="it, response 0, returned"):
            checked_scores_or_nan([wrong], 1, "it")


def test_a_sum_is_weighted_by_name():
    # 2 * 3 + 1 * 10 and 2 * 9 + 1 * 10; a weight that is not given is 1
    total = weighted_sum({"length": lists_only, "ten": lambda prompts, responses: [10, 10]}, {"length": 2})
    assert total(PROMPTS, RESPONSES, None) == [16.0, 28.0]


@pytest.mark.parametrize(
    ("sources", "weights", "match"),
    [
        ({}, None, "Found no rewards"),
        ({"a": lists_only}, {"b": 1.0}, "weights for b, expected names among a"),
        ({"a": lists_only}, {"a": float("nan")}, "Weight of a: found nan"),
        ({"a": lists_only}, {"a": "1"}, "Weight of a: found '1'"),
    ],
)
def test_weights_are_checked(sources, weights, match):
    with pytest.raises(ConfigError, match=match):
        weighted_sum(sources, weights)


def test_a_sum_names_the_part_that_failed():
    source = weighted_sum({"good": lists_only, "bad": lambda prompts, responses: [1, float("nan")]})
    with pytest.raises(DataError, match="Reward bad, response 1"):
        source(PROMPTS, RESPONSES)


def test_a_function_is_found_by_name():
    assert reward_function_named("default") is REWARD_FUNCTIONS["default"]
    named = reward_function_named(f"{__name__}:documented")
    assert named(PROMPTS, RESPONSES, ROWS) == [5, 12]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("custom", "module:function"),
        ("no_such_module_here:f", "no_such_module_here was not found"),
        (f"{__name__}:no_such", "documented"),
        (f"{__name__}:PROMPTS", "no function or class"),
        (":f", "full name"),
    ],
)
def test_a_wrong_name_is_explained(name, match):
    with pytest.raises(ConfigError, match=match):
        reward_function_named(name)


def test_reward_functions_load_neither_torch_nor_sympy():
    code = (
        "import sys, rlcore.reward_functions, rlcore.stop_sequences; "
        "sys.exit(bool({'torch', 'sympy', 'math_verify'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
