"""What the reward trainer saves, it loads: the same scores, or an error that says what to do and changes nothing."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rlcore.errors import CheckpointError
from rlcore.reward import (
    MultiObjectiveRewardModel,
    PairwiseRewardModel,
    RewardModel,
    RewardModelSource,
    RewardModelTrainer,
    load_reward_model,
)
from rlcore.scratch import train_tokenizer
from tests.support.reward import RESPONSES, body, config, reward_model, tokenizer, with_effect
from tests.support.tiny import tiny_gpt2, tiny_llama

TEXTS = {"chosen_texts": RESPONSES, "rejected_texts": ["no", "maybe not", "who knows?"]}


def trainer(model: RewardModel | None = None, **settings) -> RewardModelTrainer:
    settings = {"learning_rate": 1e-2, "warmup_steps": 0} | settings
    model = RewardModel(config(**settings), body()) if model is None else model
    return RewardModelTrainer(model, tokenizer(), model.config, device="cpu")


def scores(own: RewardModelTrainer) -> list[float]:
    return own.model.predict_rewards(RESPONSES, own.tokenizer)


@pytest.mark.parametrize("use_lora", [False, True])
@pytest.mark.parametrize("place", ["reward_model.pt", "model/", "existing folder"])
def test_trained_weights_come_back(tmp_path, place, use_lora):
    (tmp_path / "existing folder").mkdir()
    first = trainer(use_lora=use_lora)
    untrained = scores(first)
    first.train_on_preferences(**TEXTS, num_epochs=3)
    path = f"{tmp_path}/{place}"
    assert first.save_model(path) == Path(path)
    assert Path(path).is_file() is (place == "reward_model.pt")
    second = trainer(with_effect(reward_model(use_lora=use_lora, seed=5)))
    assert second.load_model(path) is None
    # a folder has the adapters added to the weights, which rounds once more
    assert scores(second) == pytest.approx(scores(first), abs=1e-6)
    assert scores(first) != pytest.approx(untrained, abs=1e-3)
    assert RewardModelSource(path, device="cpu").model.predict_rewards(RESPONSES, tokenizer()) == pytest.approx(
        scores(first), abs=1e-6
    )


def test_adapters_go_on_learning_from_a_folder_as_from_a_file(tmp_path):
    first = trainer(use_lora=True, dropout_prob=0.0, lora_dropout=0.0)
    first.train_on_preferences(**TEXTS, num_epochs=3)
    for place in ("reward_model.pt", "model/"):
        first.save_model(f"{tmp_path}/{place}")
        second = trainer(use_lora=True, dropout_prob=0.0, lora_dropout=0.0)
        second.load_model(f"{tmp_path}/{place}")
        before = second.evaluate(*TEXTS.values())["eval_loss"]
        second.train_on_preferences(**TEXTS, num_epochs=2)
        assert second.evaluate(*TEXTS.values())["eval_loss"] < before


def test_one_file_at_exactly_that_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer().save_model("reward_model.pt")
    assert os.listdir(tmp_path) == ["reward_model.pt"]
    with safe_open("reward_model.pt", framework="pt") as opened:
        assert "head.weight" in opened.keys()  # noqa: SIM118 - no mapping
    trainer().load_model("reward_model.pt")


def test_the_tokenizer_comes_with_the_weights(tmp_path):
    own = train_tokenizer(["other words, other tokens"], 280)
    first = RewardModelTrainer(reward_model(), own, config(), "cpu")
    first.save_model(tmp_path / "reward_model.pt")
    second = trainer()
    second.load_model(tmp_path / "reward_model.pt")
    assert second.tokenizer.get_vocab() == own.get_vocab() != tokenizer().get_vocab()
    assert second.chat.tokenizer is second.tokenizer
    assert scores(second) == scores(first)


@pytest.mark.parametrize("form", ["reward_model.pt", "model/"])
def test_objectives_come_back_with_their_weights(tmp_path, form):
    weights = [0.5, 0.3, 0.2]
    first = trainer(MultiObjectiveRewardModel(config(), 3, weights, body()))
    first.save_model(f"{tmp_path}/{form}")
    second = trainer(MultiObjectiveRewardModel(config(), 3, None, body()))
    second.load_model(f"{tmp_path}/{form}")
    torch.testing.assert_close(second.model.objective_weights, torch.tensor(weights))
    assert scores(second) == scores(first)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    own = trainer()
    own.save_model(tmp_path / "reward_model.pt")
    before = scores(own)
    with torch.no_grad():
        own.model.head.weight[0, 3] = float("inf")
    with pytest.raises(CheckpointError, match="head.weight holds NaN or infinity"):
        own.save_model(tmp_path / "reward_model.pt")
    own.load_model(tmp_path / "reward_model.pt")
    assert scores(own) == before


OTHERS = {
    "kind": (lambda: PairwiseRewardModel(config(), body()), "found a RewardModel, expected a PairwiseRewardModel"),
    "objectives": (lambda: MultiObjectiveRewardModel(config(), 3, None, body()), "expected a MultiObjective"),
    "width": (
        lambda: RewardModel(config(), tiny_llama(vocab_size=300, hidden_size=32)),
        r"head.weight has shape \(1, 16\), expected \(1, 32\)|has shape \(300, 16\), expected \(300, 32\)",
    ),
    "architecture": (lambda: RewardModel(config(), tiny_gpt2(vocab_size=300)), "another architecture"),
    "layers": (lambda: RewardModel(config(), tiny_llama(vocab_size=300, num_hidden_layers=3)), "another architecture"),
    "pooling": (lambda: reward_model(pooling_strategy="mean"), "pooling_strategy='last', expected .*'mean'"),
    "temperature": (lambda: reward_model(temperature=2.0), "temperature=1.0, expected temperature=2.0"),
    "outputs": (lambda: reward_model(num_labels=3), "num_labels=1, expected num_labels=3"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("form", ["reward_model.pt", "model/"])
def test_the_weights_of_another_model_are_refused(tmp_path, form, other):
    trainer().save_model(f"{tmp_path}/{form}")
    build, match = OTHERS[other]
    own = trainer(build())
    before = {name: tensor.clone() for name, tensor in own.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=match):
        own.load_model(f"{tmp_path}/{form}")
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.model.state_dict().items())


@pytest.mark.parametrize(("settings", "match"), [({}, "use_lora=True"), ({"use_lora": True, "lora_rank": 4}, "rank=8")])
def test_other_adapters_are_refused(tmp_path, settings, match):
    trainer(with_effect(reward_model(use_lora=True))).save_model(tmp_path / "reward_model.pt")
    with pytest.raises(CheckpointError, match=match):
        trainer(**settings).load_model(tmp_path / "reward_model.pt")


def test_a_file_of_torch_is_refused_with_a_way_to_convert_it(tmp_path):
    own = trainer()
    path = tmp_path / "reward_model.pt"
    torch.save(own.model.state_dict(), path)
    with pytest.raises(CheckpointError, match=r"If you trust it, convert it: .*weights_only=True"):
        own.load_model(path)
    # the way that the message names
    other = trainer(seed=3)
    other.model.load_state_dict(torch.load(path, weights_only=True))
    other.save_model(path)
    assert load_reward_model(path)[0].predict_rewards(RESPONSES, tokenizer()) == pytest.approx(scores(own), abs=1e-6)


def test_a_path_with_nothing_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        trainer().load_model(tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="Expected the folder or file of a reward model"):
        trainer().load_model(tmp_path)
