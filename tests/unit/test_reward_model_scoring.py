"""Losses and predictions of a reward model: pairs in one pass, texts in, floats out."""

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.reward import RewardModel
from rlcore.reward.texts import encode_texts
from tests.support.reward import PROMPTS, RESPONSES, ROWS, config, encoder_tokenizer, padded, reward_model, tokenizer
from tests.support.tiny import tiny_llama


def model_that_scores(rewards: torch.Tensor, monkeypatch) -> RewardModel:
    model = reward_model()
    monkeypatch.setattr(model, "scores", lambda _ids, _mask: rewards)
    return model


def blank(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros((rows, 2), dtype=torch.int64), torch.ones((rows, 2), dtype=torch.int64)


def test_preference_loss_does_not_overflow(monkeypatch):
    # -log sigmoid of 1, 0, -200 is 0.313262, 0.693147, 200; the mean is 67.002136.
    # The gradient of each is -sigmoid(-difference) / 3: -0.268941 / 3, -0.5 / 3, -1 / 3.
    rewards = torch.tensor([1.0, 0.0, -200.0, 0.0, 0.0, 0.0], requires_grad=True)
    loss = model_that_scores(rewards, monkeypatch).compute_preference_loss(*blank(3), *blank(3))
    assert loss.item() == pytest.approx(67.002136)
    loss.backward()
    chosen = torch.tensor([-0.268941, -0.5, -1.0]) / 3
    torch.testing.assert_close(rewards.grad, torch.cat([chosen, -chosen]))


def test_a_margin_asks_for_more(monkeypatch):
    # differences 1 and 2 less margins 1 and 0.5: ln(1 + e^0) = 0.693147, ln(1 + e^-1.5) = 0.201413
    rewards = torch.tensor([1.0, 2.0, 0.0, 0.0])
    loss = model_that_scores(rewards, monkeypatch).compute_preference_loss(
        *blank(2), *blank(2), margin=torch.tensor([1.0, 0.5])
    )
    assert loss.item() == pytest.approx((0.693147 + 0.201413) / 2)


def test_preference_loss_reads_both_sides_in_one_pass():
    model = reward_model()
    calls = []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    chosen, rejected = padded(ROWS[:2]), padded([ROWS[2], ROWS[0]])
    loss = model.compute_preference_loss(*chosen, *rejected)
    assert len(calls) == 1
    difference = model.scores(*chosen) - model.scores(*rejected)
    torch.testing.assert_close(loss, torch.log1p(torch.exp(-difference)).mean())


@pytest.mark.parametrize(("chosen", "rejected"), [(4, 1), (5, 3), (0, 0)])
def test_sides_of_unequal_length_are_refused(chosen, rejected):
    with pytest.raises(DataError, match=f"{chosen} rows on one side of the pairs and {rejected}"):
        reward_model().compute_preference_loss(*blank(chosen), *blank(rejected))


def test_predictions_are_floats_in_the_order_given_whatever_the_batch():
    model = reward_model()
    one_by_one = model.predict_rewards(RESPONSES, tokenizer(), batch_size=1)
    together = model.predict_rewards(RESPONSES, tokenizer())
    assert [type(score) for score in together] == [float] * 3
    assert together == pytest.approx(one_by_one, abs=1e-5)
    assert model.predict_rewards(RESPONSES[::-1], tokenizer(), batch_size=2) == pytest.approx(together[::-1], abs=1e-5)
    assert len(set(together)) == 3
    assert model.predict_rewards([], tokenizer()) == []


def test_equal_texts_have_equal_scores_to_the_last_bit(monkeypatch):
    # a model that says another number of each row of each pass, as rounding does in its last bits
    model, passes = reward_model(), []

    def score(ids: torch.Tensor, _mask: torch.Tensor) -> torch.Tensor:
        passes.append(len(ids))
        return torch.arange(len(ids)) + 10.0 * len(passes)

    monkeypatch.setattr(model, "scores", score)
    texts = ["No.", "The answer is 5.", "No.", "Sure!", "The answer is 5."]
    first, second, third, fourth, fifth = model.predict_rewards(texts, tokenizer(), batch_size=2)
    assert (first, second) == (third, fifth)
    assert len({first, second, fourth}) == 3
    # three texts, two at a time
    assert passes == [2, 1]


def test_a_prediction_is_the_score_of_the_text_and_one_end_token():
    model, chat = reward_model(), ChatFormat(tokenizer())
    (row,) = encode_texts(chat, ["The answer is 5."], 48)
    assert row == [*chat.tokenizer("The answer is 5.")["input_ids"], chat.end_id]
    alone = model.scores(torch.tensor([row]), torch.ones(1, len(row))).item()
    assert model.predict_rewards(["The answer is 5."], tokenizer()) == [pytest.approx(alone, abs=1e-6)]
    # an end token that the text already has is not doubled
    assert encode_texts(chat, [f"The answer is 5.{tokenizer().eos_token}"], 48) == [row]


def test_a_prompt_and_its_response_are_written_as_the_chat_format_does():
    chat = ChatFormat(tokenizer())
    (row,) = encode_texts(chat, [(PROMPTS[0], RESPONSES[0])], 48)
    assert row == sum(chat.encode_pair(PROMPTS[0], RESPONSES[0], max_length=48), [])
    model = reward_model()
    (pair,), (whole,) = (
        model.predict_rewards([text], tokenizer()) for text in ((PROMPTS[0], RESPONSES[0]), RESPONSES[0])
    )
    assert pair != whole


def test_a_long_text_loses_its_beginning():
    chat = ChatFormat(tokenizer())
    (whole,) = encode_texts(chat, [PROMPTS[1]], 1000)
    assert encode_texts(chat, [PROMPTS[1]], 5) == [whole[-5:]]
    model = reward_model()
    # 48 tokens are the model's limit, whatever is asked for
    long = "What is 2 plus 3? " * 20
    assert model.predict_rewards([long], tokenizer(), max_length=1000) == model.predict_rewards([long], tokenizer())
    assert model.predict_rewards([long], tokenizer(), max_length=5) != model.predict_rewards([long], tokenizer())


def test_an_encoder_keeps_its_class_token_at_the_front():
    chat = ChatFormat(encoder_tokenizer())
    (pair,) = encode_texts(chat, [(PROMPTS[1], RESPONSES[0])], 12)
    (text,) = encode_texts(chat, [PROMPTS[1]], 6)
    cls, sep = encoder_tokenizer().cls_token_id, encoder_tokenizer().sep_token_id
    assert (len(pair), pair[0], pair[-1], pair.count(sep)) == (12, cls, sep, 2)
    assert (len(text), text[0], text[-1], text.count(sep)) == (6, cls, sep, 1)


def test_predictions_have_no_dropout_and_leave_every_mode_as_it_was():
    model = RewardModel(config(dropout_prob=0.5), tiny_llama(vocab_size=300, attention_dropout=0.5)).train()
    model.body.norm.eval()
    modes = [module.training for module in model.modules()]
    assert model.predict_rewards(RESPONSES, tokenizer()) == model.predict_rewards(RESPONSES, tokenizer())
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("texts", "settings", "error", "match"),
    [
        ("one text", {}, DataError, "Put it into a list"),
        (["fine", None], {}, DataError, "Row 1: Found None"),
        (["fine", ("prompt", 3)], {}, DataError, r"Row 1: Found \('prompt', 3\)"),
        (["fine"], {"batch_size": 0}, ConfigError, "batch_size=0"),
        (["fine"], {"max_length": 1}, ConfigError, "max_length=1"),
        (["fine"], {"max_length": 0}, ConfigError, "max_length=0"),
    ],
)
def test_what_cannot_be_predicted_is_refused(texts, settings, error, match):
    with pytest.raises(error, match=match):
        reward_model().predict_rewards(texts, tokenizer(), **settings)


def test_three_outputs_predict_no_scalar():
    with pytest.raises(ConfigError, match=r"\(3, 16\), expected \(1, 16\)"):
        reward_model(num_labels=3).predict_rewards(RESPONSES, tokenizer())


@pytest.mark.parametrize("wrong", [-1, 300])
def test_token_ids_beyond_the_embedding_are_refused(wrong):
    # the body knows the ids 0 to 299
    model, ids = reward_model(), torch.tensor([[5, 9, 7], [4, wrong, 8]])
    with pytest.raises(DataError, match=f"input_ids: found {wrong} in row 1, column 1, expected ids from 0 to 299"):
        model(ids)
    with pytest.raises(DataError, match=f"found {wrong} in row 1"):
        model.compute_preference_loss(ids, torch.ones_like(ids), ids, torch.ones_like(ids))


@pytest.mark.parametrize("ids", [[[5, 9]], torch.tensor([[5.0, 9.0]]), torch.tensor([[True, True]])])
def test_token_ids_are_whole_numbers_in_a_tensor(ids):
    with pytest.raises(DataError, match="input_ids"):
        reward_model()(ids)


def test_int32_ids_are_token_ids():
    ids = torch.tensor([[5, 9, 7]])
    assert torch.equal(reward_model()(ids.int())["rewards"], reward_model()(ids)["rewards"])


def test_a_tokenizer_with_more_tokens_than_the_model_is_explained():
    larger = tokenizer()
    larger.add_tokens([f"word{number}" for number in range(300)])
    with pytest.raises(DataError, match="Use the model's own tokenizer"):
        reward_model().predict_rewards(["word299"], larger)


@pytest.mark.parametrize("text", ["b\ud83d", ("a", "b\ud83d"), ("b\ud83d", "a")])
def test_a_row_with_a_lone_surrogate_is_named(text):
    with pytest.raises(DataError, match=r"Row 1: .*U\+D83D at position 1"):
        encode_texts(ChatFormat(tokenizer()), ["fine", text], 16)
