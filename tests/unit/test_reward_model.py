"""The reward model scores what the mask shows, whatever the padding, and comes back from its folder as it was."""

import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.functional import masking
from rlcore.reward import RewardModel, RewardModelSource, load_reward_model, save_reward_model
from rlcore.reward.model import HEAD, REWARD_CONFIG
from rlcore.reward.pairs import encode, epoch_batches
from rlcore.scratch import train_tokenizer

SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BODIES = {
    "llama": lambda: LlamaModel(LlamaConfig(**SIZES, intermediate_size=32, max_position_embeddings=64)),
    "gpt2": lambda: GPT2Model(GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=64)),
    "bert": lambda: BertModel(BertConfig(**SIZES, intermediate_size=32, max_position_embeddings=64)),
    # counts positions from behind its padding position, 1
    "roberta": lambda: RobertaModel(
        RobertaConfig(**SIZES, intermediate_size=32, max_position_embeddings=66, pad_token_id=1)
    ),
}
ROWS = [[5, 9, 7], [11, 4, 8, 250, 17, 30, 2, 61, 99], [42]]
PAD = 3


def body(name: str = "llama") -> PreTrainedModel:
    torch.manual_seed(0)
    return BODIES[name]().eval()


def config(**settings) -> RewardModelConfig:
    return RewardModelConfig(**{"model_name": "tiny", "max_length": 48, **settings})


def reward_model(name: str = "llama", **settings) -> RewardModel:
    return RewardModel(config(**settings), body(name)).eval()


def padded(rows: list[list[int]], left: int = 0, right: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in one rectangle, right-padded, with more padding on both sides."""
    width = max(map(len, rows))
    ids = [[PAD] * left + row + [PAD] * (width - len(row) + right) for row in rows]
    mask = [[0] * left + [1] * len(row) + [0] * (width - len(row) + right) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


def largest_change_by_padding(model: RewardModel) -> float:
    """How far the score of a row moves when it is padded on either side and gets batch mates."""
    alone = torch.stack([model.scores(*padded([row]))[0] for row in ROWS])
    batches = [padded(ROWS), padded(ROWS, left=5), padded(ROWS, right=5), padded(ROWS, left=5, right=5)]
    return max((model.scores(ids, mask) - alone).abs().max().item() for ids, mask in batches)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["What is 2 plus 3?", "The answer is 5.", "Sure! The answer is 5."], 300)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_padding_and_batch_mates_do_not_change_a_score(name, pooling):
    assert largest_change_by_padding(reward_model(name, pooling_strategy=pooling)) < 1e-5


@torch.no_grad()
def test_a_model_that_reads_a_padding_token_is_caught(monkeypatch):
    monkeypatch.setitem(masking.POOLINGS, "last", lambda hidden, _mask: hidden[:, -1])
    assert largest_change_by_padding(reward_model()) > 1e-3


@torch.no_grad()
def test_a_model_without_position_ids_is_caught(monkeypatch):
    model = reward_model("gpt2")
    model._arguments = frozenset()
    assert largest_change_by_padding(model) > 1e-3


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


def test_a_row_without_a_real_token_is_refused():
    ids, mask = padded(ROWS)
    mask[2] = 0
    with pytest.raises(ValueError, match=r"Rows \[2\]"):
        reward_model().scores(ids, mask)


def test_a_model_with_three_outputs_gives_no_scalar(tokenizer):
    model = reward_model(num_labels=3)
    with pytest.raises(ValueError, match=r"\(3, 16\), expected \(1, 16\)"):
        model.scores(*padded(ROWS))
    with pytest.raises(ValueError, match=r"\(3, 16\), expected \(1"):
        RewardModelSource(model, tokenizer)


def test_an_encoder_decoder_is_refused():
    torch_body = T5Model(T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(ConfigError, match="encoder-decoder"):
        RewardModel(config(), torch_body)


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
    with pytest.raises(DataError, match=f"{chosen} chosen and {rejected} rejected"):
        reward_model().compute_preference_loss(*blank(chosen), *blank(rejected))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
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


@pytest.mark.parametrize("use_lora", [False, True])
@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_a_folder_gives_back_the_same_scores(tmp_path, tokenizer, name, use_lora):
    model = reward_model(name, use_lora=use_lora)
    for key, weight in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(weight, std=0.5)
    model.reward_shift.fill_(0.25)
    model.reward_scale.fill_(1.5)
    save_reward_model(model, tokenizer, tmp_path / "model")
    loaded, loaded_tokenizer = load_reward_model(tmp_path / "model")
    scores = model.scores(*padded(ROWS))
    # adding the adapters to the weights rounds once more; otherwise nothing may move
    torch.testing.assert_close(loaded.scores(*padded(ROWS)), scores, rtol=0, atol=1e-6 if use_lora else 0.0)
    assert loaded.config.use_lora is False
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert not loaded.training
    assert largest_change_by_padding(loaded) < 1e-5


def test_the_decoder_of_a_causal_model_becomes_the_body(tmp_path, tokenizer):
    language_model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=32, tie_word_embeddings=True))
    language_model.save_pretrained(tmp_path / "lm")
    model = RewardModel(config(model_name=str(tmp_path / "lm")))
    assert isinstance(model.body, LlamaModel)
    assert torch.equal(model.body.embed_tokens.weight, language_model.lm_head.weight)
    assert RewardModel(config(), language_model).body is language_model.model
    save_reward_model(RewardModel(config(), language_model), tokenizer, tmp_path / "rm")
    torch.testing.assert_close(
        load_reward_model(tmp_path / "rm")[0].body.embed_tokens.weight, language_model.lm_head.weight
    )


@pytest.fixture
def folder(tmp_path, tokenizer) -> Path:
    save_reward_model(reward_model(), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def test_training_may_start_from_a_reward_model(folder):
    model = RewardModel(config(model_name=str(folder), seed=9))
    assert torch.equal(model.head.weight, load_reward_model(folder)[0].head.weight)


def test_starting_with_another_number_of_outputs_names_both_shapes(folder):
    with pytest.raises(ValueError, match=r"shape \(1, 16\), expected \(3, 16\)"):
        RewardModel(config(model_name=str(folder), num_labels=3))


def test_a_head_that_is_not_the_configs_is_refused(folder):
    settings = json.loads((folder / REWARD_CONFIG).read_text())
    (folder / REWARD_CONFIG).write_text(json.dumps(settings | {"num_labels": 3}))
    with pytest.raises(CheckpointError, match=r"shape \(1, 16\), expected \(3, 16\)"):
        load_reward_model(folder)


@pytest.mark.parametrize("name", [HEAD, REWARD_CONFIG])
def test_a_folder_without_its_head_or_config_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_reward_model(folder)


def test_a_head_file_without_the_weight_is_refused(folder):
    head = load_file(folder / HEAD)
    save_file({key: value for key, value in head.items() if key != "weight"}, folder / HEAD)
    with pytest.raises(CheckpointError, match="found no weight"):
        load_reward_model(folder)


def test_a_body_with_a_missing_weight_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="norm.weight"):
        load_reward_model(folder)


class _Trap:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", [HEAD, "model.safetensors"])
def test_pickled_weights_are_not_read(folder, tmp_path, name):
    (folder / name).write_bytes(pickle.dumps(_Trap(tmp_path / "marker")))
    with pytest.raises(CheckpointError):
        load_reward_model(folder)
    assert not (tmp_path / "marker").exists()


PROMPTS = ["What is 2 plus 3?", "Add 1 and 1, then think about it for a while.", "Hi"]
RESPONSES = ["The answer is 5.", "2", "Sure! The answer is 5."]


def test_a_source_scores_in_the_order_given_whatever_the_batch(folder, tokenizer):
    together = RewardModelSource(folder)(PROMPTS, RESPONSES)
    one_by_one = RewardModelSource(folder, batch_size=1)
    assert all(isinstance(score, float) for score in together)
    assert together == pytest.approx(one_by_one(PROMPTS, RESPONSES), abs=1e-5)
    assert together == pytest.approx(one_by_one(PROMPTS[::-1], RESPONSES[::-1])[::-1], abs=1e-5)
    model, _ = load_reward_model(folder)
    (row,) = encode(ChatFormat(tokenizer), PROMPTS[1:2], RESPONSES[1:2], 48)
    assert together[1] == pytest.approx(model.scores(torch.tensor([row]), torch.ones(1, len(row))).item(), abs=1e-5)


def test_a_tokenizer_without_a_padding_token_pads_with_its_end_token(folder, tokenizer):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = RewardModelSource(folder)
    assert source.chat.pad_id == source.chat.end_id
    one_by_one = RewardModelSource(folder, batch_size=1)
    assert source(PROMPTS, RESPONSES) == pytest.approx(one_by_one(PROMPTS, RESPONSES), abs=1e-5)


def test_scoring_has_no_dropout_and_leaves_every_mode_as_it_was(tokenizer):
    model = reward_model(dropout_prob=0.5).train()
    model.body.norm.eval()
    modes = [module.training for module in model.modules()]
    source = RewardModelSource(model, tokenizer)
    assert source(PROMPTS, RESPONSES) == source(PROMPTS, RESPONSES)
    assert [module.training for module in model.modules()] == modes


def test_a_scored_response_ends_with_one_end_token(tokenizer):
    chat = ChatFormat(tokenizer)
    rows = encode(chat, PROMPTS, RESPONSES, 48)
    assert [(row[-1], row.count(chat.end_id)) for row in rows] == [(chat.end_id, 1)] * 3


def test_a_prompt_loses_its_beginning_and_a_response_nothing(tokenizer):
    chat = ChatFormat(tokenizer)
    response = [*chat.encode_response(RESPONSES[0]), chat.end_id]
    (whole,) = encode(chat, PROMPTS[1:2], RESPONSES[:1], 1000)
    (row,) = encode(chat, PROMPTS[1:2], RESPONSES[:1], len(response) + 3)
    assert row == whole[-len(response) - 3 :]
    assert row[3:] == response


def test_an_epoch_visits_every_pair_once_in_an_order_of_its_own():
    batches = epoch_batches(50, 8, seed=0, epoch=0)
    assert [len(batch) for batch in batches] == [8] * 6 + [2]
    assert sorted(sum(batches, [])) == list(range(50))
    assert batches == epoch_batches(50, 8, seed=0, epoch=0)
    others = [epoch_batches(50, 8, seed, epoch) for seed, epoch in ((0, 1), (1, 0), (1, 1))]
    assert all(batches != other for other in others)
    assert others[0] != others[1]
    assert sum(batches, []) != list(range(50))


def test_a_source_refuses_what_it_cannot_score(tokenizer):
    source = RewardModelSource(reward_model(), tokenizer)
    with pytest.raises(DataError, match="2 prompts and 1 responses"):
        source(["a", "b"], ["c"])
    with pytest.raises(DataError, match="Row 1: found the response None"):
        source(["a", "b"], ["c", None])
    with pytest.raises(ConfigError, match="without its tokenizer"):
        RewardModelSource(reward_model())
    with pytest.raises(ConfigError, match="batch_size=0"):
        RewardModelSource(reward_model(), tokenizer, batch_size=0)
    assert source([], []) == []


def test_rows_are_no_longer_than_the_bodys_positions(tokenizer):
    model = reward_model("roberta", max_length=500)
    # 66 positions, of which 0 and 1 are never used
    assert model.max_length == 64
    (score,) = RewardModelSource(model, tokenizer)(["What is this? " * 50], ["5"])
    assert math.isfinite(score)
