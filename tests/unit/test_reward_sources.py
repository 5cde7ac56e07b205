"""Everything that may score responses, as a reward source; what it may not say."""

import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaForSequenceClassification

from rlcore.environments import MultiObjectiveRewardEnv, TextGenerationEnv
from rlcore.environments.base import Observation, RLEnvironment, StepResult
from rlcore.errors import ConfigError, DataError
from rlcore.reward import (
    ClassifierSource,
    MultiObjectiveRewardModel,
    PairwiseRewardModel,
    RewardModel,
    RewardModelSource,
    save_reward_model,
)
from rlcore.reward_functions import WeightedSum, checked_scores_or_nan
from rlcore.rollout import EncodedPrompt, reward_source_of, score_responses
from rlcore.rollout.reward_sources import MAX_SCORE
from tests.support.reward import body, config
from tests.support.tiny import tiny_llama, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPTS = [EncodedPrompt("What is 1 plus 1?", [4], {"answer": "2"}, ""), EncodedPrompt("Hi", [4], {"answer": "5"}, "")]
RESPONSES = ["The answer is 2.", "two"]


def scores_of(reward, **arguments) -> list[float]:
    return score_responses(reward_source_of(reward, TOKENIZER, **arguments), PROMPTS, RESPONSES)[0]


def lists(prompts, responses):
    return [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]


def with_metadata(prompts, responses, metadata=None):
    return torch.tensor([float(row["answer"]) for row in metadata])


def each(prompt, generated, full_text):
    assert full_text == prompt + generated
    return len(generated)


class Doubling:
    """A reward source of one's own."""

    def __call__(self, prompts, responses, metadata=None):
        return [2.0 * len(response) for response in responses]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        # 4 words and 1 word, of 50 for the whole reward
        (None, [4 / 50, 1 / 50]),
        (lists, [33.0, 5.0]),
        (with_metadata, [2.0, 5.0]),
        (each, [16.0, 3.0]),
        (Doubling(), [32.0, 6.0]),
        ("correctness", [1.0, 0.0]),
        ("rlcore.reward_functions.named:length_penalty_score", None),
        (TextGenerationEnv(TOKENIZER, ["Hi"], reward_fn=each), [16.0, 3.0]),
        ({"length": each, "right": "correctness"}, [17.0, 3.0]),
    ],
)
def test_every_form_of_reward_scores(reward, expected):
    if expected is None:
        # a function of the module that takes another form is refused by name
        with pytest.raises(ConfigError, match="length_penalty_score"):
            scores_of(reward)
        return
    assert scores_of(reward) == pytest.approx(expected)


def test_weights_are_for_named_rewards():
    named = {"length": each, "right": "correctness"}
    source = reward_source_of(named, TOKENIZER, {"right": 10.0})
    assert isinstance(source, WeightedSum)
    scores, parts = score_responses(source, PROMPTS, RESPONSES)
    # 16 + 10 * 1, 3 + 10 * 0; the parts are unweighted
    assert scores == [26.0, 3.0]
    assert parts == {"length": [16.0, 3.0], "right": [1.0, 0.0]}
    with pytest.raises(ConfigError, match="weights for wrong, expected names among length, right"):
        reward_source_of(named, TOKENIZER, {"wrong": 1.0})
    with pytest.raises(ConfigError, match="Found reward weights for a and one reward"):
        reward_source_of(each, TOKENIZER, {"a": 1.0})


@pytest.mark.parametrize("make", [RewardModel, PairwiseRewardModel])
def test_a_reward_model_scores_as_object_and_as_folder(tmp_path: Path, make):
    model = make(config(), base_model=body()).eval()
    expected = RewardModelSource(model, TOKENIZER)([prompt.text for prompt in PROMPTS], RESPONSES)
    assert scores_of(model) == pytest.approx(expected)
    save_reward_model(model, TOKENIZER, tmp_path / "reward")
    for name in (tmp_path / "reward", str(tmp_path / "reward")):
        assert scores_of(name, device="cpu") == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 2


def test_several_objectives_are_weighed_and_each_is_told():
    model = MultiObjectiveRewardModel(config(), 2, [0.5, 0.25], base_model=body()).eval()
    scores, parts = score_responses(reward_source_of(model, TOKENIZER), PROMPTS, RESPONSES)
    assert list(parts) == ["objective_0", "objective_1"]
    weighed = [0.5 * first + 0.25 * second for first, second in zip(*parts.values(), strict=True)]
    assert scores == pytest.approx(weighed, abs=1e-6)


def test_a_classifier_folder_with_one_label_scores(tmp_path: Path):
    settings = {**tiny_llama(vocab_size=300).config.to_dict(), "num_labels": 1}
    torch.manual_seed(0)
    classifier = LlamaForSequenceClassification(type(tiny_llama().config)(**settings)).eval()
    classifier.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    source = reward_source_of(tmp_path, TOKENIZER, device="cpu")
    assert isinstance(source, ClassifierSource)
    assert scores_of(source) == pytest.approx(ClassifierSource(tmp_path)([p.text for p in PROMPTS], RESPONSES))


def test_an_environment_of_several_rewards_scores():
    env = MultiObjectiveRewardEnv(TOKENIZER, ["Hi"], {"length": each, "one": lambda prompt, generated, full_text: 1.0})
    assert scores_of(env) == [17.0, 4.0]


class PlayedEnvironment(RLEnvironment):
    """Pays 1 for each token; the third ends the episode."""

    def reset(self, prompt: str | None = None) -> Observation:
        self.left = 3
        return Observation(torch.ones(1, 1), torch.ones(1, 1), prompt or "")

    def step(self, action) -> StepResult:
        self.left -= 1
        return StepResult(1.0, self.left == 0)

    def render(self) -> str:
        return ""


def test_an_environment_of_ones_own_is_played():
    assert scores_of(PlayedEnvironment()) == [3.0, 3.0]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (7, "Found 7 as reward, expected a function of"),
        ("correctnes", "'correctnes' as reward, which is no folder. Expected .*default, length_penalty, correctness"),
        (Path("/no/such/folder"), "which is no folder"),
        (torch.nn.Linear(1, 1), "Found a Linear as reward, expected a RewardModel"),
        (TextGenerationEnv, "as reward, expected"),
        (lambda: 0, "expected the parameters"),
        ({}, "Found no rewards"),
        ({"good": each, "bad": 3}, "Found 3 as reward"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(reward, message):
    with pytest.raises(ConfigError, match=message):
        reward_source_of(reward, TOKENIZER)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (["good", 1.0], "judge, response 0, returned 'good', expected a finite number"),
        ([1.0, None], "judge, response 1, returned None, expected a finite number"),
        ([1.0, math.nan], "judge, response 1, returned nan, expected a finite number"),
        ([1.0, math.inf], "judge, response 1, returned inf, expected a finite number"),
        ([1.0], "judge returned 1 scores for 2 responses"),
        ([], "judge returned 0 scores for 2 responses"),
        ("12", "judge returned '12', expected a list of 2 numbers"),
        (None, "judge returned None, expected a list of 2 numbers"),
        # a larger one squared is beyond float32, whose largest number is 3.4e38
        ([1.0, -1e38], r"judge, response 1, returned -1e\+38, expected at most 1e\+15"),
        ([1e300, 1.0], r"judge, response 0, returned 1e\+300"),
    ],
)
def test_scores_that_are_no_numbers_are_refused_by_source_and_row(returned, message):
    def judge(prompts, responses, metadata=None):
        return returned

    for reward in (judge, reward_source_of(judge, TOKENIZER)):
        with pytest.raises(DataError, match=message):
            score_responses(reward, PROMPTS, RESPONSES)


def test_the_largest_score_still_squares():
    assert scores_of(lambda prompts, responses: [MAX_SCORE, -MAX_SCORE]) == [MAX_SCORE, -MAX_SCORE]
    assert (torch.tensor([MAX_SCORE]) ** 2 * 1e6).isfinite().all()


def test_a_source_that_may_have_no_score_says_nan():
    def judge(prompts, responses):
        return [None, 0.5]

    source = reward_source_of({"judge": judge}, TOKENIZER, check=checked_scores_or_nan)
    scores, parts = score_responses(source, PROMPTS, RESPONSES, checked_scores_or_nan)
    assert math.isnan(scores[0])
    assert math.isnan(parts["judge"][0])
    assert scores[1] == 0.5


def test_nobody_is_asked_about_nothing():
    def fails(prompts, responses):
        raise AssertionError

    assert score_responses(fails, [], []) == ([], {})
