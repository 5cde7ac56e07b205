"""Rows that are no rows: every trainer says what it found, and what to pass, before it trains."""

import datasets
import pytest
import torch

from rlcore import dpo as dpo_stage
from rlcore import grpo as grpo_stage
from rlcore import ppo as ppo_stage
from rlcore import reward as reward_stage
from rlcore.configs import RewardModelConfig
from rlcore.dpo import PreferenceDataset
from rlcore.environments import PreferenceComparisonEnv
from rlcore.errors import ConfigError, DataError
from rlcore.reward import RewardModel, RewardModelTrainer
from rlcore.reward_functions import as_reward_source, responses_per_prompt
from rlcore.rollout import reward_source_of
from tests.support import dpo, grpo, ppo, reward
from tests.support.ppo import PROMPTS, mean_letter
from tests.support.tiny import tiny_tokenizer
from tests.support.trl import start_folder

TEXTS = ["good", "better", "best"]
PAIR_STAGES = {
    "dpo": lambda data, folder: dpo_stage.train(dpo.config(model_name=str(folder)), data, folder / "out"),
    "reward": lambda data, folder: reward_stage.train(RewardModelConfig(model_name=str(folder)), data, folder / "out"),
}
SAMPLING_STAGES = {
    "ppo": lambda data, folder: ppo_stage.train(ppo.tiny_config(model_name=str(folder)), data, folder / "out"),
    "grpo": lambda data, folder: grpo_stage.train(grpo.config(model_name=str(folder)), data, folder / "out"),
}
ROWS = [{"prompt": "p", "chosen": "a", "rejected": "b"}]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return start_folder(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize("stage", [*PAIR_STAGES, *SAMPLING_STAGES])
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (ROWS, "a list"),
        (datasets.Dataset.from_list(ROWS), "a Dataset"),
        ({"valid": ROWS, "test": ROWS}, r"the splits \['test', 'valid'\]"),
        (5, "a int"),
    ],
)
def test_rows_come_by_split(start, stage, data, found):
    with pytest.raises(DataError, match=f"Found {found}, expected train among the splits of a datasets.DatasetDict"):
        (PAIR_STAGES | SAMPLING_STAGES)[stage](data, start)
    assert not (start / "out").exists()


@pytest.mark.parametrize("stage", PAIR_STAGES)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": ROWS}, "Split train: found a list, expected a datasets.Dataset"),
        ({"train": datasets.Dataset.from_list(ROWS), "validation": None}, "Split validation: found a NoneType"),
    ],
)
def test_pairs_of_a_split_are_a_data_set(start, stage, data, message):
    with pytest.raises(DataError, match=message):
        PAIR_STAGES[stage](data, start)


# Columns in memory.

COLUMNS = [
    (None, "found a NoneType, expected a list"),
    (iter(TEXTS), "found a list_iterator, expected a list"),
    ((text for text in TEXTS), "found a generator, expected a list"),
    ({"text": TEXTS}, "found a dict, expected a list"),
    (set(TEXTS), "found a set, expected a list"),
    (7, "found a int, expected a list"),
    ("good", "found the text 'good', expected a list of texts"),
    (TEXTS[:2], "expected equal"),
    ([], "expected equal"),
    ([*TEXTS[:2], None], "found None, expected text"),
    ([*TEXTS[:2], float("nan")], "found nan, expected text"),
]
IDS = [str(number) for number in range(len(COLUMNS))]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("column", "message"), COLUMNS, ids=IDS)
def test_a_column_of_a_preference_data_set_is_a_list_of_texts(place, column, message):
    columns = [TEXTS, TEXTS, TEXTS[::-1]]
    columns[place] = column
    with pytest.raises(DataError, match=message):
        PreferenceDataset(*columns, tiny_tokenizer())


@pytest.fixture(scope="module")
def reward_trainer():
    trainer = RewardModelTrainer(reward.reward_model(), reward.tokenizer(), reward.config(), "cpu")
    yield trainer
    trainer.close()


@pytest.mark.parametrize(("column", "message"), COLUMNS, ids=IDS)
def test_a_column_of_the_reward_trainer_is_a_list_of_texts(reward_trainer, column, message):
    message = message.replace("expected equal", "expected equally many")
    with pytest.raises(DataError, match=message):
        reward_trainer.train_on_preferences(TEXTS, column)
    with pytest.raises(DataError, match=message):
        reward_trainer.evaluate(column, TEXTS)


# Texts to score.


@pytest.fixture(scope="module")
def scorer() -> RewardModel:
    return reward.reward_model()


def test_no_text_gives_no_score_and_an_empty_response_has_one(scorer):
    assert scorer.predict_rewards([], reward.tokenizer()) == []
    assert len(scorer.predict_rewards([("Hi", "")], reward.tokenizer())) == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([""], "Row 0: Found the text '', expected one to score"),
        (["good", " \n"], "Row 1: Found the text"),
        (None, "Found a NoneType as texts, expected a list"),
        (3, "Found a int as texts, expected a list"),
        ("good", "Found the text 'good', expected a list"),
        ([None], "Row 0: Found None, expected text"),
        ([("Hi", None)], "Row 0: Found"),
    ],
)
def test_what_is_no_text_to_score_is_named(scorer, texts, message):
    with pytest.raises(DataError, match=message):
        scorer.predict_rewards(texts, reward.tokenizer())


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), torch.tensor([0.5, float("nan")])])
def test_a_margin_is_a_number(scorer, margin):
    side = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(DataError, match="margin that is not finite"):
        scorer.compute_preference_loss(*side, *side, margin=margin)


# Rewards that compare.


def test_a_reward_that_compares_says_so_through_every_form():
    environment = PreferenceComparisonEnv(tiny_tokenizer(), PROMPTS, human_feedback_fn=lambda *texts: 0.0)

    def comparing(prompts, responses):
        return [0.0] * len(responses)

    comparing.responses_per_prompt = 3
    mixed = reward_source_of({"pairs": environment, "letters": mean_letter, "own": comparing}, tiny_tokenizer())
    assert responses_per_prompt(reward_source_of(environment, tiny_tokenizer())) == 2
    assert responses_per_prompt(as_reward_source(comparing)) == responses_per_prompt(mixed) == 3
    assert responses_per_prompt(reward_source_of(mean_letter, tiny_tokenizer())) == 1


def test_a_reward_that_compares_cannot_choose_the_best_iteration():
    environment = PreferenceComparisonEnv(tiny_tokenizer(), PROMPTS, human_feedback_fn=lambda *texts: 0.0)
    trainer = ppo.tiny_trainer(ppo.tiny_config(), reward_fn=environment)
    for call in (lambda: trainer.train(PROMPTS, validation_prompts=PROMPTS), lambda: trainer.evaluate(PROMPTS)):
        with pytest.raises(ConfigError, match="Found validation prompts and a reward that compares"):
            call()
    assert trainer.iteration == 0
    trainer.close()
