"""Text generation as an environment: what policies see, when responses end, what they earn."""

import numpy as np
import pytest
import torch

from rlcore.environments import Observation, StepResult, TextGenerationEnv, Trajectory
from rlcore.errors import ConfigError, DataError, RLCoreError
from tests.support.environments import END, TOKENIZER, act_out, graded, ids_of, text_env
from tests.support.tiny import blank_marking_tokenizer


def test_records_have_the_documented_defaults():
    observation = Observation(torch.tensor([1]), torch.tensor([1]), "p")
    result = StepResult(1.0, True)
    trajectory = Trajectory([observation], [torch.tensor(1)], [1.0], [torch.tensor(-0.5)], True, 1.0)
    assert observation.metadata == result.info == result.metrics == trajectory.metrics == {}
    assert result.next_observation is None
    assert StepResult(1.0, True).info is not result.info


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


def test_the_first_step_begins_the_first_episode_and_a_later_one_needs_a_reset():
    env = text_env()
    assert env.step(ids_of("a")[0]).next_observation.metadata["prompt_idx"] == 0
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


@pytest.mark.parametrize(
    "reward",
    [
        lambda prompts, responses, metadata=None: [len(response) for response in responses],
        lambda question, text, both: len(both) - len(question),
    ],
)
def test_a_reward_function_may_have_the_form_that_a_trainer_takes(reward):
    env = text_env(reward_fn=reward)
    env.reset()
    assert act_out(env, "yes")[-1].reward == 3.0
    assert env.score_responses(["Say hi"] * 2, ["yes", "no"]) == [3.0, 2.0]


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
        ({"max_length": True}, "max_length=True"),
        ({"max_length": 1.5}, "max_length=1.5"),
        ({"max_length": None}, "max_length=None"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"reward_fn": 0}, "Found 0 as a reward function"),
        ({"stop_sequences": "\n"}, "list of strings"),
        ({"reward_fn": lambda text: 1.0}, "The reward function of the environment.*expected the parameters"),
    ],
)
def test_settings_are_checked_at_once(settings, match):
    with pytest.raises(ConfigError, match=match):
        text_env(**settings)


@pytest.mark.parametrize("prompt", ["", " \n", 5])
def test_a_given_prompt_is_text_that_is_not_empty(prompt):
    with pytest.raises(DataError, match="expected a text that is not empty"):
        text_env().reset(prompt)


@pytest.mark.parametrize(
    "action", [None, "a", 1.5, True, -1, 2**63 - 1, 10**20, 10**6, len(TOKENIZER), [5, [6]], [5, 6]]
)
def test_an_action_is_one_token_of_the_vocabulary(action):
    env = text_env()
    env.reset()
    with pytest.raises(DataError, match="expected"):
        env.step(action)
    # nothing was appended
    assert env.step(ids_of("a")[0]).metrics["length"] == 1


@pytest.mark.parametrize("make", [int, np.int64, lambda id: torch.tensor([id]), lambda id: [torch.tensor(id)]])
def test_a_token_may_be_written_in_several_ways(make):
    env = text_env()
    env.reset()
    assert env.step(make(ids_of("a")[0])).info["generated_text"] == "a"


@pytest.mark.parametrize(
    ("prompts", "responses"), [("ab", ["c", "d"]), (["a", "b"], "cd"), (["a"], None), (["a"], [None])]
)
@pytest.mark.parametrize("env", [text_env(), graded()])
def test_whole_responses_are_lists_of_texts(env, prompts, responses):
    with pytest.raises(DataError, match="list of texts|expected text"):
        env.score_responses(prompts, responses)
