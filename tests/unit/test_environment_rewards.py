"""Environments with several rewards, problems in arithmetic, and environments by name."""

import pytest

from rlcore.environments import MultiObjectiveRewardEnv, TextGenerationEnv, create_math_problem_env, environment_named
from rlcore.environments.math_problems import PROBLEMS, arithmetic_value
from rlcore.errors import ConfigError, DataError
from tests.support.environments import END, TOKENIZER, act_out, graded, ids_of, longer_wins


def test_components_are_weighted_in_the_sum_and_raw_in_the_metrics():
    env = graded(reward_weights={"words": 0.5})
    env.reset()
    results = act_out(env, "a b c")
    # 1 * 1 + 0.5 * 3
    assert results[-1].reward == 2.5
    assert results[-1].metrics == {
        "reward": 2.5,
        "length": len(results),
        "reward_correct": 1.0,
        "reward_words": 3.0,
        "reward_total": 2.5,
    }
    assert results[0].metrics == {"reward": 0.0, "length": 1}
    assert env.reward_weights == {"correct": 1.0, "words": 0.5}


def test_the_sum_can_be_asked_for():
    total, components = graded(reward_weights={"words": 0.1}).compute_multi_objective_reward("p", "one two", "p one")
    assert components == {"correct": 0.0, "words": 2.0}
    assert total == pytest.approx(0.2)


def test_settings_reach_the_episode():
    env = graded(max_length=2, stop_sequences=["b"], temperature=0.5)
    assert env.reset().metadata["temperature"] == 0.5
    assert [result.done for result in act_out(env, "ab", end=False)] == [False, True]
    env.reset()
    assert env.step(ids_of("b")[0]).info["generated_text"] == ""


@pytest.mark.parametrize(
    ("components", "settings", "match"),
    [
        ({}, {}, "no rewards"),
        ({"a": len}, {"reward_weights": {"b": 1.0}}, "weights for b, expected names among a"),
        ({"a": len}, {"reward_weights": {"a": float("inf")}}, "Weight of a"),
        ({"total": len}, {}, "Rename"),
        ({"a": len}, {"reward_fn": len}, "reward_components"),
    ],
)
def test_components_and_weights_are_checked(components, settings, match):
    with pytest.raises(ConfigError, match=match):
        MultiObjectiveRewardEnv(TOKENIZER, ["p"], components, **settings)


@pytest.mark.parametrize("returned", [None, float("nan")])
def test_a_component_without_a_number_is_named(returned):
    env = MultiObjectiveRewardEnv(TOKENIZER, ["p"], {"good": lambda *texts: 1.0, "bad": lambda *texts: returned})
    env.reset()
    with pytest.raises(DataError, match="component bad"):
        env.step(END)


@pytest.mark.parametrize(
    ("text", "correctness", "formatting"),
    [
        ("Answer: 4", 1.0, 1.0),
        (r"\boxed{4}", 1.0, 1.0),
        ("4", 1.0, 0.0),
        ("2 + 2 = 4", 1.0, 0.0),
        ("Answer: 5", 0.0, 1.0),
        ("2 + 2", 0.0, 0.0),
        ("correct", 0.0, 0.0),
        ("This is incorrect", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_right_answer_earns_most_and_the_word_nothing(text, correctness, formatting):
    env = create_math_problem_env(TOKENIZER)
    total, components = env.compute_multi_objective_reward("What is 2 + 2?", text, "What is 2 + 2?" + text)
    assert components == {"correctness": correctness, "formatting": formatting}
    assert total == pytest.approx(correctness + 0.1 * formatting)


def test_an_episode_of_arithmetic():
    env = create_math_problem_env(TOKENIZER, max_length=20)
    assert env.reset().prompt == "What is 2 + 2?"
    assert act_out(env, "Answer: 4")[-1].reward == pytest.approx(1.1)


def test_every_problem_has_the_answer_that_python_gives():
    for problem in PROBLEMS:
        calculation = problem.removeprefix("What is ").removesuffix("?")
        assert arithmetic_value(problem) == str(eval(calculation))


@pytest.mark.parametrize(("prompt", "value"), [("What is (1 + 2) × 4 ÷ 8?", "3/2"), ("3 cats: -2.5 * 2 =", "-5")])
def test_calculations_are_exact(prompt, value):
    assert arithmetic_value(prompt) == value


@pytest.mark.parametrize("prompt", ["Who was born in 1879?", "What is 1 / 0?", "2 ** 9", "What is (1 + 2?"])
def test_a_prompt_without_a_calculation_is_refused(prompt):
    with pytest.raises(DataError, match="no calculation"):
        arithmetic_value(prompt)


def test_problems_may_bring_their_answers():
    env = create_math_problem_env(TOKENIZER, {"How many legs has a cat?": "4"})
    assert env.compute_multi_objective_reward("How many legs has a cat?", "Answer: 4 legs", "")[0] == pytest.approx(1.1)
    with pytest.raises(DataError, match="How many legs has a dog"):
        env.compute_multi_objective_reward("How many legs has a dog?", "4", "")


def test_environments_have_names_and_settings():
    env = environment_named("text_generation", TOKENIZER, ["p"], '{"stop_sequences": ["b"], "max_length": 3}')
    assert (type(env), env.stop_sequences, env.max_length) == (TextGenerationEnv, ("b",), 3)
    config = {
        "reward_components": {
            "long": {"type": "length"},
            "polite": {"type": "keyword", "keywords": ["Please", "thank"]},
        },
        "reward_weights": {"polite": 0.5},
    }
    env = environment_named("multi_objective", TOKENIZER, ["p"], config)
    # one word of fifty; two keywords at half weight
    assert env.compute_multi_objective_reward("p", "please-thank", "") == (
        pytest.approx(0.02 + 1.0),
        {"long": 0.02, "polite": 2.0},
    )
    env = environment_named("preference_comparison", TOKENIZER, ["p"], None, human_feedback_fn=longer_wins)
    assert env.preference("p", "ab", "a") == 1.0


def test_an_object_that_an_environment_does_not_take_is_explained():
    with pytest.raises(
        ConfigError, match=r"text_generation: .*'preference_model'.*expected those of TextGenerationEnv"
    ):
        environment_named("text_generation", TOKENIZER, ["p"], preference_model=longer_wins)


@pytest.mark.parametrize(
    ("name", "config", "match"),
    [
        ("chess", None, "text_generation, multi_objective, preference_comparison"),
        ("text_generation", "{", "Expected a JSON object"),
        ("text_generation", "[1]", "expected a JSON object"),
        ("text_generation", {"reward_components": {}}, "found the settings reward_components"),
        ("multi_objective", {}, "found None, expected an object"),
        ("multi_objective", {"reward_components": {"a": {"type": "magic"}}}, "reward_components.a"),
        ("multi_objective", {"reward_components": {"a": {"type": "keyword"}}}, "reward_components.a"),
        ("multi_objective", {"reward_components": {"a": {"type": "length", "words": 9}}}, "reward_components.a"),
        ("preference_comparison", {}, "Pass preference_model"),
    ],
)
def test_wrong_names_and_settings_are_explained(name, config, match):
    with pytest.raises(ConfigError, match=match):
        environment_named(name, TOKENIZER, ["p"], config)


def test_problems_are_a_mapping_of_texts():
    with pytest.raises(ConfigError, match="problems: found a list, expected answers by prompt"):
        create_math_problem_env(TOKENIZER, ["What is 2 + 2?"])
    with pytest.raises(DataError, match=r"answer to 'What is 2 \+ 2\?': found 4, expected text"):
        create_math_problem_env(TOKENIZER, {"What is 2 + 2?": 4})


@pytest.mark.parametrize("written", ["*".join(["2"] * 3000), "-" * 5000 + "1 + 1", "(" * 5000, "9" * 5000 + " + 1"])
def test_a_calculation_of_thousands_of_characters_is_refused(written):
    with pytest.raises(DataError, match="at most 300"):
        arithmetic_value(f"What is {written}?")


def test_a_calculation_of_300_characters_is_worked_out():
    # 150 ones and 149 signs are 299 characters
    assert arithmetic_value("+".join("1" * 150)) == "150"
