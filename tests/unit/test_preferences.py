"""Two responses to one prompt: who is asked which is better, and what comes of it."""

import pytest
import torch

from rlcore.configs import RewardModelConfig
from rlcore.environments import PreferenceComparisonEnv, preference_by_score
from rlcore.errors import ConfigError, DataError, RLCoreError
from tests.support.environments import END, TOKENIZER, ids_of, longer_wins
from tests.support.tiny import tiny_llama


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


@pytest.mark.parametrize("action", [None, "a", [5, [6]], [[5], [6]], [5, None], [-1], [10**20], [10**6]])
def test_a_response_is_tokens_of_the_vocabulary(action):
    env = PreferenceComparisonEnv(TOKENIZER, ["Say hi"], human_feedback_fn=longer_wins)
    env.reset()
    with pytest.raises(DataError, match="expected"):
        env.step(action)
