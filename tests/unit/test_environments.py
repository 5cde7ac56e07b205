"""Environments: what policies see, when episodes end, what they earn."""

import sys
from types import ModuleType

import pytest
import torch

from rlcore.configs import RewardModelConfig
from rlcore.environments import (
    EnvironmentReward,
    MultiObjectiveRewardEnv,
    Observation,
    PreferenceComparisonEnv,
    RLEnvironment,
    StepResult,
    TextGenerationEnv,
    Trajectory,
    create_math_problem_env,
    environment_named,
    load_episode_environment,
    play,
    preference_by_score,
)
from rlcore.environments.math_problems import PROBLEMS, arithmetic_value
from rlcore.errors import ConfigError, DataError, RLCoreError
from tests.support.tiny import blank_marking_tokenizer, tiny_llama, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def act_out(env, text, end=True):
    """All steps of a response; what they returned."""
    return [env.step(token) for token in [*ids_of(text), *([END] if end else [])]]


def text_env(**settings):
    return TextGenerationEnv(TOKENIZER, settings.pop("prompts", ["Say hi"]), **settings)


# the three records


def test_records_have_the_documented_defaults():
    observation = Observation(torch.tensor([1]), torch.tensor([1]), "p")
    result = StepResult(1.0, True)
    trajectory = Trajectory([observation], [torch.tensor(1)], [1.0], [torch.tensor(-0.5)], True, 1.0)
    assert observation.metadata == result.info == result.metrics == trajectory.metrics == {}
    assert result.next_observation is None
    assert StepResult(1.0, True).info is not result.info


# text generation


def test_an_episode_of_text():
    env = text_env(prompts=["Say hi", "Bye"], temperature=0.5)
    first = env.reset()
    prompt_ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Say hi"}], add_generation_prompt=True, return_dict=False
    )
    assert first.input_ids.tolist() == [prompt_ids]
    assert first.attention_mask.tolist() == [[1] * len(prompt_ids)]
    assert first.input_ids.dtype == torch.int64
    assert first.prompt == "Say hi"
    assert first.metadata == {"prompt_idx": 0, "steps": 0, "temperature": 0.5}
    letters = ids_of("ab")
    result = env.step(letters[0])
    assert (result.reward, result.done, result.metrics) == (0.0, False, {"reward": 0.0, "length": 1})
    assert result.next_observation.input_ids.tolist() == [[*prompt_ids, letters[0]]]
    assert result.next_observation.metadata["steps"] == 1
    env.step(letters[1])
    assert env.render() == "Prompt: Say hi\nGenerated: ab\nSteps: 2"
    last = env.step(END)
    # one word of fifty; the end token is a step and no text
    assert (last.reward, last.done, last.next_observation) == (1 / 50, True, None)
    assert last.info == {"generated_text": "ab", "steps": 3}
    assert last.metrics == {"reward": 1 / 50, "length": 3}


def test_prompts_come_in_turn_and_begin_again():
    env = text_env(prompts=["a", "b"])
    seen = [env.reset() for _ in range(5)]
    assert [observation.prompt for observation in seen] == ["a", "b", "a", "b", "a"]
    assert [observation.metadata["prompt_idx"] for observation in seen] == [0, 1, 0, 1, 0]


def test_a_given_prompt_leaves_the_turn_alone():
    env = text_env(prompts=["a", "b"])
    env.reset()
    given = env.reset(prompt="c")
    assert (given.prompt, given.metadata["prompt_idx"]) == ("c", None)
    assert env.reset().prompt == "b"


@pytest.mark.parametrize("wrap", [int, torch.tensor, lambda token: torch.tensor([token])])
def test_an_action_is_an_int_or_a_tensor_with_one_element(wrap):
    env = text_env()
    env.reset()
    assert env.step(wrap(ids_of("a")[0])).info == {"generated_text": "a", "steps": 1}


@pytest.mark.parametrize("action", [torch.tensor([1, 2]), torch.tensor([]), torch.tensor(1.0), -1, torch.tensor(True)])
def test_other_actions_are_refused_and_leave_the_episode_alone(action):
    env = text_env()
    env.reset()
    with pytest.raises(DataError, match="Found"):
        env.step(action)
    assert env.step(END).info["steps"] == 1


def test_a_step_needs_a_running_episode():
    env = text_env()
    with pytest.raises(RLCoreError, match="reset"):
        env.step(END)
    env.reset()
    env.step(END)
    with pytest.raises(RLCoreError, match="reset"):
        env.step(END)


def test_a_stop_string_spans_tokens_and_is_no_part_of_the_text():
    env = text_env(stop_sequences=["STOP"])
    env.reset()
    assert len(ids_of("STOP")) > 1
    results = act_out(env, "so it goes STOP", end=False)
    assert [result.done for result in results] == [False] * (len(results) - 1) + [True]
    assert results[-1].info["generated_text"] == "so it goes "
    assert results[-1].reward == 3 / 50


def test_a_stop_string_in_the_prompt_stops_nothing():
    env = text_env(prompts=["Say STOP"], stop_sequences=["STOP", "P"])
    env.reset()
    assert not env.step(ids_of("a")[0]).done


def test_a_stop_string_over_the_border_of_prompt_and_response_stops_nothing():
    env = text_env(prompts=["Say ST"], stop_sequences=["STOP"])
    env.reset()
    assert not any(result.done for result in act_out(env, "OP", end=False))


def test_characters_that_span_tokens_come_out_whole():
    seen = []
    env = text_env(reward_fn=lambda prompt, generated, full_text: seen.append(generated) or 1.0)
    env.reset()
    assert len(ids_of("é €")) > 3
    act_out(env, "é €")
    assert seen == ["é €"]


def test_a_text_ends_at_the_length_limit():
    env = text_env(max_length=3)
    env.reset()
    results = [env.step(token) for token in ids_of("abc")]
    assert [result.done for result in results] == [False, False, True]
    assert results[-1].metrics["length"] == 3


def test_an_observation_keeps_the_newest_tokens():
    env = text_env(max_length=4)
    prompt_ids = text_env().reset().input_ids[0].tolist()
    assert env.reset().input_ids[0].tolist() == prompt_ids[-4:]
    letter = ids_of("a")[0]
    assert env.step(letter).next_observation.input_ids[0].tolist() == [*prompt_ids[-3:], letter]


def test_the_reward_function_is_asked_once_by_keywords():
    calls = []

    def reward(*, full_text, generated, prompt):
        calls.append((prompt, generated, full_text))
        return torch.tensor(0.25)

    env = text_env(reward_fn=reward)
    env.reset()
    last = act_out(env, "yes")[-1]
    assert calls == [("Say hi", "yes", "Say hiyes")]
    assert last.reward == last.metrics["reward"] == 0.25
    assert type(last.reward) is float


@pytest.mark.parametrize("returned", [None, float("nan"), "1"])
def test_a_reward_has_to_be_a_finite_number(returned):
    env = text_env(reward_fn=lambda **texts: returned)
    env.reset()
    with pytest.raises(DataError, match="reward function"):
        env.step(END)


def test_a_tokenizer_that_marks_blanks_keeps_the_first_blank():
    tokenizer = blank_marking_tokenizer()
    env = TextGenerationEnv(tokenizer, ["ab"])
    env.reset()
    env.step(tokenizer.convert_tokens_to_ids("▁up"))
    assert env.step(tokenizer.eos_token_id).info["generated_text"] == " up"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"prompts": []}, "at least one text"),
        ({"prompts": "one text"}, "a list"),
        ({"prompts": ["a", " "]}, r"prompts\[1\]"),
        ({"prompts": ["a", None]}, r"prompts\[1\]"),
        ({"max_length": 0}, "max_length=0"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"stop_sequences": "\n"}, "list of strings"),
    ],
)
def test_settings_are_checked_at_once(settings, match):
    with pytest.raises(ConfigError, match=match):
        text_env(**settings)


# several rewards


def graded(**settings):
    components = {
        "correct": lambda prompt, generated, full_text: float(full_text == prompt + generated),
        "words": lambda prompt, generated, full_text: len(generated.split()),
    }
    return MultiObjectiveRewardEnv(TOKENIZER, ["Say hi"], components, **settings)


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


# arithmetic


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


# preferences


def longer_wins(prompt, first, second):
    return float(len(first) - len(second))


def test_two_responses_are_compared():
    env = PreferenceComparisonEnv(TOKENIZER, ["Say hi", "Bye"], human_feedback_fn=longer_wins)
    start = env.reset()
    assert start.metadata == {"prompt_idx": 0, "comparison_round": 0}
    first = env.step(torch.tensor([*ids_of("hello"), END]))
    assert (first.reward, first.done) == (0.0, False)
    assert first.info == {"responses": ["hello"]}
    assert first.metrics == {"reward": 0.0, "num_responses": 1}
    assert first.next_observation.input_ids.tolist() == start.input_ids.tolist()
    assert first.next_observation.metadata["comparison_round"] == 1
    second = env.step(ids_of("hi"))
    # 5 - 2 characters
    assert (second.reward, second.done, second.next_observation) == (3.0, True, None)
    assert second.metrics == {"reward": 3.0, "num_responses": 2}
    assert env.render() == "Prompt: Say hi\nResponse 1: hello\nResponse 2: hi"
    with pytest.raises(RLCoreError, match="reset"):
        env.step(ids_of("third"))
    assert env.reset().prompt == "Bye"


def test_equal_responses_are_a_tie_and_nobody_is_asked():
    env = PreferenceComparisonEnv(TOKENIZER, ["p"], preference_model=lambda *texts: 1 / 0)
    env.reset()
    env.step(ids_of("same"))
    assert env.step([*ids_of("same"), END]).reward == 0.0


def test_the_model_is_asked_where_there_is_one():
    env = PreferenceComparisonEnv(TOKENIZER, ["p"], lambda *texts: 7.0, human_feedback_fn=lambda *texts: 1 / 0)
    env.reset()
    env.step(ids_of("a"))
    assert env.step(ids_of("b")).reward == 7.0


def reward_model():
    from rlcore.reward import RewardModel

    body = tiny_llama(vocab_size=len(TOKENIZER))
    return RewardModel(RewardModelConfig(model_name="tiny", dropout_prob=0.5, max_length=48), body)


def test_a_reward_model_prefers_by_the_difference_of_its_rewards():
    from rlcore.reward import RewardModelSource

    model = reward_model().train()
    env = PreferenceComparisonEnv(TOKENIZER, ["Say hi"], preference_model=model)
    rewards = RewardModelSource(model, TOKENIZER)(["Say hi"] * 2, ["yes", "maybe not"])
    found = []
    for pair in (("yes", "maybe not"), ("yes", "maybe not"), ("maybe not", "yes")):
        env.reset()
        env.step(ids_of(pair[0]))
        found.append(env.step(ids_of(pair[1])).reward)
    # dropout 0.5 is off, so the same pair gives the same number, and the other order its negative
    assert abs(rewards[0] - rewards[1]) > 1e-4
    assert found[0] == pytest.approx(rewards[0] - rewards[1], rel=1e-4)
    assert found[1] == found[0]
    assert found[2] == -found[0]
    assert model.training


def test_scores_of_a_source_make_a_preference():
    prefer = preference_by_score(lambda prompts, responses: [len(response) for response in responses])
    assert prefer("p", "abc", "a") == 2


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({}, "Pass preference_model or human_feedback_fn"),
        ({"preference_model": torch.nn.Linear(1, 1)}, "found Linear"),
        ({"preference_model": 3}, "Found 3"),
        ({"human_feedback_fn": longer_wins, "max_length": 1}, "max_length=1"),
    ],
)
def test_somebody_has_to_prefer(settings, match):
    with pytest.raises(ConfigError, match=match):
        PreferenceComparisonEnv(TOKENIZER, ["p"], **settings)


@pytest.mark.parametrize("action", [[], torch.tensor([[1], [2]]), torch.tensor([0.5])])
def test_a_response_is_one_row_of_tokens(action):
    env = PreferenceComparisonEnv(TOKENIZER, ["p"], human_feedback_fn=longer_wins)
    env.reset()
    with pytest.raises(DataError):
        env.step(action)


def test_a_preference_has_to_be_a_number():
    env = PreferenceComparisonEnv(TOKENIZER, ["p"], human_feedback_fn=lambda *texts: None)
    with pytest.raises(DataError, match="The preference returned None"):
        env.preference("p", "a", "b")


# episodes played by a policy


def scripted(text):
    tokens = iter([*ids_of(text), END])
    return lambda observation: (torch.tensor(next(tokens)), torch.tensor(-0.5))


def test_a_rollout_records_every_step():
    trajectory = play(graded(), scripted("a b"), max_steps=50)
    steps = len(ids_of("a b")) + 1
    assert [len(part) for part in (trajectory.observations, trajectory.actions, trajectory.logprobs)] == [steps] * 3
    assert trajectory.rewards == [0.0] * (steps - 1) + [3.0]
    assert (trajectory.done, trajectory.total_reward) == (True, 3.0)
    assert trajectory.metrics["reward_words"] == 2.0
    assert [action.item() for action in trajectory.actions] == [*ids_of("a b"), END]
    # each observation is the one before the action
    assert trajectory.observations[1].input_ids[0, -1] == trajectory.actions[0]


def test_a_rollout_stops_at_its_limit():
    trajectory = play(text_env(), scripted("a b c"), max_steps=2)
    assert (len(trajectory.actions), trajectory.done, trajectory.total_reward) == (2, False, 0.0)
    with pytest.raises(ConfigError, match="max_steps=0"):
        play(text_env(), scripted(""), max_steps=0)


def test_a_rollout_of_whole_responses():
    responses = iter(["long one", "one"])
    env = PreferenceComparisonEnv(TOKENIZER, ["p"], human_feedback_fn=longer_wins)
    trajectory = play(env, lambda _: (torch.tensor(ids_of(next(responses))), torch.tensor(-2.0)), max_steps=9)
    assert trajectory.rewards == [0.0, 5.0]
    assert trajectory.done


# environments as reward sources


def test_text_environments_score_responses():
    env = text_env(stop_sequences=["\n"], reward_fn=lambda prompt, generated, full_text: len(full_text))
    env.reset()
    source = EnvironmentReward(env)
    # the text from the stop string on does not count
    assert source(["p", "pp"], ["abc", "ab\ncd"], [{}, {}]) == [4.0, 4.0]
    assert env.step(END).info["steps"] == 1
    assert EnvironmentReward(graded())(["p"], ["a b"]) == [3.0]


def test_preferences_score_each_response_against_the_others_to_its_prompt():
    source = EnvironmentReward(PreferenceComparisonEnv(TOKENIZER, ["p"], human_feedback_fn=longer_wins))
    # lengths 1, 2, 6 under p: (1-2 + 1-6)/2, (2-1 + 2-6)/2, (6-1 + 6-2)/2; 3 against 1 under q
    scores = source(["p", "q", "p", "p", "q"], ["a", "abc", "ab", "abcdef", "a"])
    assert scores == [-3.0, 2.0, -1.5, 4.5, -2.0]
    with pytest.raises(DataError, match="Prompt 1 has one response"):
        source(["p", "q", "p"], ["a", "b", "c"])


class Vowels(RLEnvironment):
    """Pays 1 for each vowel as it comes, and 10 at the end for a response to its favourite prompt."""

    def reset(self, prompt=None):
        self.prompt = prompt
        return Observation(torch.tensor([[1]]), torch.tensor([[1]]), prompt)

    def step(self, action):
        done = action.item() == END
        bonus = 10.0 if done and self.prompt == "favourite" else 0.0
        return StepResult(bonus + (TOKENIZER.decode(action) in "aeiou"), done)

    def render(self):
        return self.prompt


def test_an_environment_of_ones_own_is_played_with_the_prompt_that_was_answered():
    source = EnvironmentReward(Vowels(), TOKENIZER)
    assert source(["other", "favourite"], ["a e", "x"]) == [2.0, 10.0]


def test_an_environment_that_cannot_be_played_is_refused():
    class Turns(Vowels):
        def reset(self):
            return super().reset("its own")

    class Endless(Vowels):
        def step(self, action):
            return StepResult(0.0, False)

    with pytest.raises(ConfigError, match="tokenizer"):
        EnvironmentReward(Vowels())
    with pytest.raises(ConfigError, match="takes no prompt"):
        EnvironmentReward(Turns(), TOKENIZER)
    with pytest.raises(ConfigError, match="subclass of RLEnvironment"):
        EnvironmentReward(object(), TOKENIZER)
    with pytest.raises(DataError, match="Endless went on"):
        EnvironmentReward(Endless(), TOKENIZER)(["p"], ["a"])


# environments by name


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


# environments that bring their data set


class Hotel:
    def __init__(self, rooms=1, price=10.0):
        self.rooms, self.price = rooms, price

    def build_dataset(self, tokenizer):
        return [{"prompt": "Book a room."}] * self.rooms

    def score_episode(self, model, tokenizer, completion, case_idx):
        return 1.0

    def get_tools(self):
        return []


class Half(Hotel):
    get_tools = None
    score_episode = None


@pytest.fixture
def hotels(monkeypatch):
    module = ModuleType("hotels_for_a_test")
    module.Hotel, module.Half, module.ROOMS = Hotel, Half, 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_an_episode_environment_is_imported_and_built(hotels):
    env = load_episode_environment(hotels, "Hotel", '{"rooms": 3}')
    assert (env.rooms, env.price) == (3, 10.0)
    assert len(env.build_dataset(TOKENIZER)) == 3
    assert load_episode_environment(hotels, "Hotel").rooms == 1


@pytest.mark.parametrize(
    ("class_name", "config", "match"),
    [
        ("Half", None, "no method score_episode, get_tools"),
        ("Hostel", None, "no function or class 'Hostel'.*Hotel"),
        ("ROOMS", None, "no function or class 'ROOMS'"),
        ("Hotel", "{'rooms': 3}", "Expected a JSON object"),
        ("Hotel", "3", "expected a JSON object"),
        ("Hotel", {"beds": 3}, "beds"),
    ],
)
def test_what_is_missing_is_named(hotels, class_name, config, match):
    with pytest.raises(ConfigError, match=match):
        load_episode_environment(hotels, class_name, config)


def test_a_module_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="no_such_hotels was not found"):
        load_episode_environment("no_such_hotels", "Hotel")
