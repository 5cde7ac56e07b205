"""How a reward function gets its arguments: copies that are its own, by the names of its parameters."""

from functools import partial

import pytest

from rlcore.errors import ConfigError, DataError
from rlcore.reward_functions import as_reward_source, reward_function_named
from rlcore.rollout import EncodedPrompt, reward_source_of, score_responses
from tests.support.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPTS = [EncodedPrompt(text, [4], {"seen": []}, text) for text in ("one", "two2", "three")]
RESPONSES = ["ccc", "a", "bb"]


def ask(reward):
    return score_responses(reward, PROMPTS, RESPONSES)


def lengths(prompts, responses, metadata=None):
    return [len(prompt) + 100 * len(response) for prompt, response in zip(prompts, responses, strict=True)]


def spoiling(prompts, responses, metadata=None):
    """Sorts, shortens and marks what it gets, and returns how often the metadata were marked before."""
    seen = [float(len(row["seen"])) for row in metadata]
    for row in metadata:
        row["seen"].append(1)
    responses.sort()
    prompts.clear()
    return seen


# 100 times the length of the response, and that of the prompt
EXPECTED = [303.0, 104.0, 205.0]


@pytest.mark.parametrize("wrap", [lambda reward: reward, partial(reward_source_of, tokenizer=TOKENIZER)])
def test_what_a_function_does_to_its_arguments_reaches_nobody(wrap):
    for _ in range(2):
        assert ask(wrap(spoiling))[0] == [0.0, 0.0, 0.0]
    assert ask(wrap(lengths))[0] == EXPECTED
    assert RESPONSES == ["ccc", "a", "bb"]
    assert [row.metadata for row in PROMPTS] == [{"seen": []}] * 3


def test_each_of_several_functions_gets_its_own():
    source = reward_source_of({"first": spoiling, "second": lengths, "third": spoiling}, TOKENIZER)
    scores, parts = ask(source)
    assert scores == parts["second"] == EXPECTED
    assert parts["first"] == parts["third"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("wrap", [lambda reward: reward, partial(reward_source_of, tokenizer=TOKENIZER)])
def test_scores_are_counted_against_the_responses_that_were_asked_about(wrap):
    def popping(prompts, responses, metadata=None):
        responses.pop()
        return [1.0] * len(responses)

    with pytest.raises(DataError, match="popping returned 2 scores for 3 responses"):
        ask(wrap(popping))


@pytest.mark.parametrize(
    "function",
    [
        lambda responses, prompts: lengths(prompts, responses),
        lambda responses, prompts, metadata=None: lengths(prompts, responses, metadata),
        lambda metadata, responses, prompts: lengths(prompts, responses, metadata),
        lambda *, prompts, responses: lengths(prompts, responses),
        lambda responses, prompts, **rest: lengths(prompts, responses, **rest),
        lambda generated, full_text, prompt: lengths([prompt], [generated])[0],
        lambda response, prompt, full_text: lengths([prompt], [response])[0],
        lambda prompt, response, full_text: lengths([prompt], [full_text[len(prompt) :]])[0],
        lambda asked, answered: lengths(asked, answered),
        lambda asked, answered, whole: lengths([asked], [answered])[0],
        lambda prompts, answers, context=None: lengths(prompts, answers, context),
    ],
)
def test_parameters_that_have_the_documented_names_are_passed_by_name(function):
    assert ask(as_reward_source(function))[0] == EXPECTED


@pytest.mark.parametrize(
    "function",
    [
        lambda responses, references: 0,
        lambda completions, prompts, **rest: 0,
        lambda response, prompt: 0,
        lambda responses, prompts, extra: 0,
        lambda responses, prompts, /: 0,
        lambda prompts, metadata, answers: 0,
    ],
)
def test_a_known_name_in_another_place_is_refused(function):
    with pytest.raises(ConfigError, match=r"found \w+ as parameter \d, expected the parameters"):
        as_reward_source(function)


def test_a_wrong_name_lists_a_few_that_are_there():
    with pytest.raises(ConfigError, match="no function or class 'isfil'.*isfile") as caught:
        reward_function_named("os.path:isfil")
    assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match="no function or class 'zzz'") as caught:
        reward_function_named("torch:zzz")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("reward", ["", "  "])
def test_an_empty_name_is_no_reward(reward):
    with pytest.raises(ConfigError, match="as reward, which is no folder. Expected"):
        reward_source_of(reward, TOKENIZER)
