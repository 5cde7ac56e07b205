"""The blocks about reward models run, and do what they say."""

from pathlib import Path

import pytest
import torch

import rlcore
from rlcore.models import load_tokenizer
from tests.support.documents import Page

CHOSEN, REJECTED = ["Good response 1", "Good response 2"], ["Bad response 1", "Bad response 2"]


@pytest.fixture
def tokenizer(models):
    return load_tokenizer(models["bert-base-uncased"])


def rows(tokenizer, *texts):
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def pair(tokenizer):
    """Tensors of two pairs whose sides have different lengths."""
    first, second = rows(tokenizer, "a good answer", "yes"), rows(tokenizer, "no", "rather not, never")
    names = ("input_ids_a", "attention_mask_a", "input_ids_b", "attention_mask_b")
    return dict(zip(names, (*first, *second), strict=True))


def test_reward_model(module_page: Page, tokenizer):
    names = module_page.run("reward_model")
    config, model = names["config"], names["model"].eval()
    assert config == rlcore.RewardModelConfig(model_name=config.model_name, use_lora=True)  # the rest are the defaults
    rewards = model(*rows(tokenizer, "Good.", "Bad, bad.", "!"))["rewards"]
    assert rewards.shape == (3, 1)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora" in name} | {"head.weight"}


def test_reward_training(module_page: Page, tokenizer):
    names = module_page.run("reward_training", tokenizer=tokenizer)
    trainer = names["trainer"]
    # Save/load
    assert Path("reward_model.pt").is_file()
    other = rlcore.RewardModel(names["config"].model_copy(update={"seed": 1}))
    assert other.predict_rewards(CHOSEN, tokenizer) != trainer.model.predict_rewards(CHOSEN, tokenizer)
    loaded = rlcore.RewardModelTrainer(other, tokenizer, names["config"])
    loaded.load_model("reward_model.pt")
    assert other.predict_rewards(CHOSEN, tokenizer) == trainer.model.predict_rewards(CHOSEN, tokenizer)
    # Three steps within a warm-up of a hundred hardly move anything; the same call for longer separates the pairs.
    assert trainer.evaluate(CHOSEN, REJECTED)["eval_loss"] < untrained_loss(names["config"], tokenizer)
    trainer.train_on_preferences(CHOSEN, REJECTED, num_epochs=150, batch_size=8)
    better, worse = (trainer.model.predict_rewards(texts, tokenizer) for texts in (CHOSEN, REJECTED))
    assert all(isinstance(reward, float) for reward in better)
    assert min(better) > max(worse)
    trainer.close()
    loaded.close()


def untrained_loss(config, tokenizer):
    trainer = rlcore.RewardModelTrainer(rlcore.RewardModel(config), tokenizer, config)
    loss = trainer.evaluate(CHOSEN, REJECTED)["eval_loss"]
    trainer.close()
    return loss


def test_pairwise(module_page: Page, tokenizer):
    names = module_page.run("pairwise", labels=torch.tensor([1, 0]), **pair(tokenizer))
    model, loss = names["model"].eval(), names["loss"]
    assert names["preference_score"].shape == (2, 1)
    assert loss.ndim == 0
    loss.backward()
    assert model.head.weight.grad is not None
    # 1 if A preferred, 0 if B preferred: -mean(log sigmoid(s_0), log sigmoid(-s_1)), with the dropout off
    tensors = pair(tokenizer)
    score = model.forward_pair(**tensors).squeeze(-1)
    expected = -torch.nn.functional.logsigmoid(score * torch.tensor([1.0, -1.0])).mean()
    actual = model.compute_bradley_terry_loss(**tensors, labels=torch.tensor([1, 0]))
    torch.testing.assert_close(actual, expected)


def test_multi_objective(module_page: Page, tokenizer):
    input_ids, attention_mask = rows(tokenizer, "help", "safe and honest")
    names = module_page.run(
        "multi_objective",
        input_ids=input_ids,
        attention_mask=attention_mask,
        target_rewards=torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]),
    )
    outputs, weights = names["outputs"], torch.tensor([0.5, 0.3, 0.2])
    assert outputs["rewards"].shape == (2, 3)
    assert outputs["combined_reward"].shape == (2, 1)
    torch.testing.assert_close(outputs["combined_reward"].squeeze(-1), outputs["rewards"] @ weights)
    losses = names["per_objective_losses"]
    assert set(losses) == {"objective_0_loss", "objective_1_loss", "objective_2_loss"}
    weighted = sum(weight * loss for weight, loss in zip(weights.tolist(), losses.values(), strict=True))
    assert names["loss"].item() == pytest.approx(weighted, rel=1e-6)
    names["loss"].backward()
    assert names["config"].num_labels == 1  # the caller's settings stay as they are
