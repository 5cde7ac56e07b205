"""The reward model scores what the mask shows, whatever the padding, on every kind of body."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MambaConfig,
    MambaModel,
    T5Config,
    T5Model,
    XLNetConfig,
    XLNetModel,
)

from rlcore.errors import ConfigError, DataError
from rlcore.functional import masking
from rlcore.models import context_length
from rlcore.reward import RewardModel
from tests.support.reward import BODIES, ROWS, SIZES, body, config, padded, reward_model


def largest_change_by_padding(model: RewardModel) -> float:
    """How far the score of a row moves when it is padded on either side and gets batch mates."""
    alone = torch.stack([model.scores(*padded([row]))[0] for row in ROWS])
    batches = [padded(ROWS), padded(ROWS, left=5), padded(ROWS, right=5), padded(ROWS, left=5, right=5)]
    return max((model.scores(ids, mask) - alone).abs().max().item() for ids, mask in batches)


@torch.no_grad()
def test_a_padding_token_that_is_read_changes_a_score(monkeypatch):
    model = reward_model()
    assert largest_change_by_padding(model) < 1e-5
    monkeypatch.setitem(masking.POOLINGS, "last", lambda hidden, _mask: hidden[:, -1])
    assert largest_change_by_padding(model) > 1e-3


@torch.no_grad()
def test_positions_that_count_padding_change_a_score():
    model = reward_model("gpt2")
    assert largest_change_by_padding(model) < 1e-5
    model._arguments._names = frozenset()
    assert largest_change_by_padding(model) > 1e-3


def test_an_unknown_pooling_is_refused_by_the_config():
    with pytest.raises(ValueError, match="'last', 'mean' or 'cls'"):
        config(pooling_strategy="max")


@torch.no_grad()
def test_an_end_token_inside_a_row_is_no_padding():
    # the padding token is the end token, and the prompt holds one
    model = reward_model()
    with_end = [5, 3, 7, 3]
    alone = model.scores(*padded([with_end]))
    torch.testing.assert_close(model.scores(*padded([with_end, ROWS[1]]))[:1], alone, rtol=0, atol=1e-5)
    assert (alone - model.scores(*padded([[5]]))).abs() > 1e-3


@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_an_unpadded_row_is_read_as_the_body_reads_it_by_itself(name):
    model = reward_model(name)
    ids = torch.tensor([ROWS[1]])
    hidden = model(ids)["last_hidden_state"]
    torch.testing.assert_close(hidden, model.body(input_ids=ids).last_hidden_state)


@torch.no_grad()
def test_the_order_of_rows_does_not_matter():
    model = reward_model()
    ids, mask = padded(ROWS)
    order = [2, 0, 1]
    torch.testing.assert_close(model.scores(ids[order], mask[order]), model.scores(ids, mask)[order])


@torch.no_grad()
def test_rewards_are_the_head_over_temperature_shifted_and_scaled():
    model = reward_model(temperature=2.0, num_labels=3)
    model.reward_shift.fill_(0.5)
    model.reward_scale.fill_(4.0)
    outputs = model(*padded(ROWS))
    expected = (outputs["pooled_output"] @ model.head.weight.T / 2.0 - 0.5) / 4.0
    torch.testing.assert_close(outputs["rewards"], expected)
    torch.testing.assert_close(model(*padded(ROWS), return_dict=False), expected)
    assert outputs["last_hidden_state"].shape == (3, 9, 16)


@torch.no_grad()
def test_a_single_row_keeps_both_dimensions():
    assert reward_model()(*padded(ROWS[:1]))["rewards"].shape == (1, 1)
    assert reward_model().scores(*padded(ROWS[:1])).shape == (1,)


def test_dropout_is_on_in_training_mode_alone():
    model = reward_model(dropout_prob=0.5).train()
    rows = padded(ROWS)
    assert not torch.equal(model.scores(*rows), model.scores(*rows))
    model.eval()
    assert torch.equal(model.scores(*rows), model.scores(*rows))


def test_a_row_without_a_real_token_is_refused():
    ids, mask = padded(ROWS)
    mask[2] = 0
    with pytest.raises(DataError, match=r"Rows \[2\]"):
        reward_model().scores(ids, mask)


def test_a_mask_of_another_shape_is_refused():
    ids, mask = padded(ROWS)
    with pytest.raises(DataError, match=r"input_ids \[3, 9\], attention_mask \[1, 9\]"):
        reward_model().scores(ids, mask[:1])
    with pytest.raises(DataError, match=r"shape \[9\], expected \[rows, tokens\]"):
        reward_model().scores(ids[0], mask[0])


def test_a_model_with_three_outputs_gives_no_scalar():
    with pytest.raises(ConfigError, match=r"\(3, 16\), expected \(1, 16\)"):
        reward_model(num_labels=3).scores(*padded(ROWS))


def test_an_encoder_decoder_is_refused():
    torch_body = T5Model(T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(ConfigError, match="encoder-decoder"):
        RewardModel(config(), torch_body)


def test_rows_are_no_longer_than_the_bodys_positions():
    model = reward_model("roberta", max_length=500)
    # 66 positions, of which 0 and 1 are never used
    assert context_length(model.body) == 66
    assert model.max_length == 64


def test_a_body_without_a_limit_leaves_the_configs():
    shape = {"vocab_size": 300, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}
    assert RewardModel(config(max_length=31), XLNetModel(XLNetConfig(**shape))).max_length == 31


def test_a_body_that_takes_no_adapters_is_refused():
    mamba = MambaModel(MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ConfigError, match="MambaModel takes no adapters"):
        RewardModel(config(use_lora=True), mamba)


def test_weights_depend_on_the_seed_alone():
    first, again, other = (RewardModel(config(use_lora=True, seed=seed), body()).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    differ = {key for key in first if not torch.equal(first[key], other[key])}
    assert differ == {key for key in first if "lora_A" in key or key == "head.weight"}


def test_a_new_model_leaves_the_random_stream_where_it_was():
    own_body = body()
    before = torch.get_rng_state()
    RewardModel(config(use_lora=True), own_body)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_end_token_learns_although_it_doubles_as_padding():
    model = RewardModel(config(), LlamaModel(LlamaConfig(**SIZES, intermediate_size=32, pad_token_id=2)))
    model.scores(torch.tensor([[5, 2]]), torch.tensor([[1, 1]])).sum().backward()
    assert model.body.embed_tokens.weight.grad[2].abs().sum() > 0


def test_the_decoder_of_a_causal_model_becomes_the_body(tmp_path):
    language_model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=32, tie_word_embeddings=True))
    language_model.save_pretrained(tmp_path / "lm")
    model = RewardModel(config(model_name=str(tmp_path / "lm")))
    assert isinstance(model.body, LlamaModel)
    assert torch.equal(model.body.embed_tokens.weight, language_model.lm_head.weight)
    assert RewardModel(config(), language_model).body is language_model.model


@pytest.mark.parametrize("name", BODIES)
def test_adapters_and_head_train_and_nothing_else(name):
    model = RewardModel(config(use_lora=True, lora_rank=2), body(name)).train()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    trained = {key for key, value in model.named_parameters() if value.requires_grad}
    assert "head.weight" in trained
    assert all("lora_" in key for key in trained - {"head.weight"})
    assert len(trained) > 1
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    for _ in range(3):
        model.compute_preference_loss(*padded(ROWS), *padded(ROWS[::-1])).backward()
        optimizer.step()
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert changed <= trained
    # lora_B starts at 0, so that the least gradient shows
    assert changed >= {key for key in trained if "lora_A" not in key}


def test_adapters_are_made_as_configured():
    model = RewardModel(config(use_lora=True, lora_rank=3, lora_alpha=12, lora_dropout=0.25), body())
    layer = model.body.base_model.model.layers[0].self_attn.q_proj
    assert layer.lora_A["default"].weight.shape[0] == 3
    assert layer.scaling["default"] == 12 / 3
    assert layer.lora_dropout["default"].p == 0.25
