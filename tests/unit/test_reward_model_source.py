"""A reward model as a reward source: texts in, one score for each response, whatever the batch."""

import json
import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.reward import (
    MultiObjectiveRewardModel,
    PairwiseRewardModel,
    RewardModelSource,
    load_reward_model,
    save_reward_file,
    save_reward_model,
)
from rlcore.reward.pairs import encode
from tests.support.reward import PROMPTS, RESPONSES, body, config, reward_model, tokenizer


@pytest.fixture
def folder(tmp_path):
    save_reward_model(reward_model(), tokenizer(), tmp_path / "model")
    return tmp_path / "model"


def test_a_source_scores_in_the_order_given_whatever_the_batch(folder):
    together = RewardModelSource(folder)(PROMPTS, RESPONSES)
    one_by_one = RewardModelSource(folder, batch_size=1)
    assert all(isinstance(score, float) for score in together)
    assert together == pytest.approx(one_by_one(PROMPTS, RESPONSES), abs=1e-5)
    assert together == pytest.approx(one_by_one(PROMPTS[::-1], RESPONSES[::-1])[::-1], abs=1e-5)
    model, _ = load_reward_model(folder)
    (row,) = encode(ChatFormat(tokenizer()), PROMPTS[1:2], RESPONSES[1:2], 48)
    assert together[1] == pytest.approx(model.scores(torch.tensor([row]), torch.ones(1, len(row))).item(), abs=1e-5)


def test_a_tokenizer_without_a_padding_token_pads_with_its_end_token(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = RewardModelSource(folder)
    assert source.chat.pad_id == source.chat.end_id
    one_by_one = RewardModelSource(folder, batch_size=1)
    assert source(PROMPTS, RESPONSES) == pytest.approx(one_by_one(PROMPTS, RESPONSES), abs=1e-5)


def test_scoring_has_no_dropout_and_leaves_every_mode_as_it_was():
    model = reward_model(dropout_prob=0.5).train()
    model.body.norm.eval()
    modes = [module.training for module in model.modules()]
    source = RewardModelSource(model, tokenizer())
    assert source(PROMPTS, RESPONSES) == source(PROMPTS, RESPONSES)
    assert [module.training for module in model.modules()] == modes


def test_a_scored_response_ends_with_one_end_token():
    chat = ChatFormat(tokenizer())
    rows = encode(chat, PROMPTS, RESPONSES, 48)
    assert [(row[-1], row.count(chat.end_id)) for row in rows] == [(chat.end_id, 1)] * 3


def test_a_prompt_loses_its_beginning_and_a_response_nothing():
    chat = ChatFormat(tokenizer())
    response = [*chat.encode_response(RESPONSES[0]), chat.end_id]
    (whole,) = encode(chat, PROMPTS[1:2], RESPONSES[:1], 1000)
    (row,) = encode(chat, PROMPTS[1:2], RESPONSES[:1], len(response) + 3)
    assert row == whole[-len(response) - 3 :]
    assert row[3:] == response


def test_a_long_prompt_is_scored_by_a_body_of_few_positions():
    source = RewardModelSource(reward_model("roberta", max_length=500), tokenizer())
    (score,) = source(["What is this? " * 50], ["5"])
    assert math.isfinite(score)


def test_a_pairwise_model_scores_by_its_reward(tmp_path):
    model = PairwiseRewardModel(config(), body()).eval()
    expected = model.predict_rewards(list(zip(PROMPTS, RESPONSES, strict=True)), tokenizer())
    save_reward_file(model, tokenizer(), tmp_path / "pairwise.pt")
    for source in (RewardModelSource(model, tokenizer()), RewardModelSource(tmp_path / "pairwise.pt")):
        assert source(PROMPTS, RESPONSES) == pytest.approx(expected, abs=1e-6)
        assert source.parts(PROMPTS, RESPONSES) == {}


def test_objectives_are_scored_by_their_weighted_sum_and_told_apart():
    source = RewardModelSource(MultiObjectiveRewardModel(config(), 2, [2.0, 0.5], body()), tokenizer())
    parts = source.parts(PROMPTS, RESPONSES)
    assert list(parts) == ["objective_0", "objective_1"]
    by_hand = [2.0 * first + 0.5 * second for first, second in zip(*parts.values(), strict=True)]
    assert source(PROMPTS, RESPONSES) == pytest.approx(by_hand, abs=1e-6)
    assert len(set(parts["objective_0"])) == 3


def test_three_outputs_are_no_source():
    with pytest.raises(ConfigError, match=r"\(3, 16\), expected \(1, 16\)"):
        RewardModelSource(reward_model(num_labels=3), tokenizer())


def test_a_source_refuses_what_it_cannot_score():
    source = RewardModelSource(reward_model(), tokenizer())
    with pytest.raises(DataError, match="2 prompts, 1 responses"):
        source(["a", "b"], ["c"])
    with pytest.raises(DataError, match=r"Row 1: Found .*None"):
        source(["a", "b"], ["c", None])
    with pytest.raises(ConfigError, match="without its tokenizer"):
        RewardModelSource(reward_model())
    with pytest.raises(ConfigError, match="batch_size=0"):
        RewardModelSource(reward_model(), tokenizer(), batch_size=0)
    assert source([], []) == []
