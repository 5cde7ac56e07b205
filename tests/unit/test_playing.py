"""Environments that are played: by a policy, and by a trainer that wants its responses scored."""

import pytest
import torch

from rlcore.environments import (
    EnvironmentReward,
    Observation,
    PreferenceComparisonEnv,
    RLEnvironment,
    StepResult,
    lm_policy,
    play,
)
from rlcore.errors import ConfigError, DataError
from tests.support.environments import END, TOKENIZER, graded, ids_of, longer_wins, text_env
from tests.support.tiny import tiny_llama


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


LENGTH = 6


def text_of_model(seed=0, temperature=0.5, **settings):
    model = tiny_llama(vocab_size=len(TOKENIZER))
    env = text_env(max_length=64, temperature=temperature)
    return model, play(env, lm_policy(model, seed=seed, **settings), max_steps=LENGTH)


def test_a_language_model_plays_with_the_log_probabilities_of_what_it_sampled():
    model, trajectory = text_of_model(top_k=3)
    assert len(trajectory.actions) == LENGTH
    for observation, action, logprob in zip(
        trajectory.observations, trajectory.actions, trajectory.logprobs, strict=True
    ):
        # of the whole distribution at the environment's temperature, though only the 3 most likely tokens are sampled
        with torch.no_grad():
            expected = (model(observation.input_ids).logits[0, -1] / 0.5).log_softmax(dim=-1)
        assert action in expected.topk(3).indices
        torch.testing.assert_close(logprob, expected[action])


def test_an_episode_of_a_language_model_is_that_of_its_seed():
    actions = [[action.item() for action in text_of_model(seed)[1].actions] for seed in (0, 0, 1)]
    assert actions[0] == actions[1]
    assert actions[0] != actions[2]


def test_near_temperature_zero_a_language_model_plays_what_is_most_likely():
    model, trajectory = text_of_model(temperature=0.0001)
    for observation, action in zip(trajectory.observations, trajectory.actions, strict=True):
        assert action == model(observation.input_ids).logits[0, -1].argmax()


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
