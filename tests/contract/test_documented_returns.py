"""What documented calls return, by running them on tiny models: keys and shapes of the committed table."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlcore
from rlcore.models import load_causal_lm, load_tokenizer
from tests.support.documents import documented

RETURNS = documented()["returns"]
SIZES = {"B": 2, "L": 7, "L-1": 6, "H": 16, "V": 292, "P": 4, "iterations": 1, "steps": 1}
"""What the letters of the table stand for here. T, prompt, chosen and rejected depend on the tokens."""


@dataclass
class World:
    """Tiny models and rows to call everything on."""

    folder: Path
    body: Path

    def __post_init__(self) -> None:
        self.tokenizer = load_tokenizer(self.folder)
        self.model = load_causal_lm(self.folder)
        self.ids = torch.arange(4, 18).reshape(2, 7)
        self.mask = torch.ones_like(self.ids)
        self.pipeline = rlcore.ForwardBackwardPipeline(self.model)
        self.client = rlcore.AsyncTrainingClient(self.model)
        self.reward_config = rlcore.RewardModelConfig(model_name=str(self.body))

    @property
    def batch(self) -> dict[str, Tensor]:
        return {"input_ids": self.ids, "attention_mask": self.mask, "labels": self.ids}

    def pairs(self) -> rlcore.PreferenceDataset:
        return rlcore.PreferenceDataset(["What?"], ["this one"], ["no"], self.tokenizer)

    def end(self) -> Tensor:
        return torch.tensor(self.tokenizer.eos_token_id)


def ppo_training(world: World) -> Any:
    config = rlcore.PPOConfig(model_name=str(world.folder), batch_size=2, mini_batch_size=1, max_new_tokens=3)
    trainer = rlcore.PPOTrainer(config)
    history = trainer.train(["Say it."], num_iterations=1)
    trainer.close()
    return history


def dpo_trainer(world: World) -> rlcore.DPOTrainer:
    return rlcore.DPOTrainer(rlcore.DPOConfig(model_name=str(world.folder)), model=world.model)


def several_objectives(world: World) -> Any:
    loss, losses = rlcore.MultiObjectiveRewardModel(world.reward_config).compute_multi_objective_loss(
        world.ids, world.mask, torch.zeros(2, 3)
    )
    assert loss.shape == ()
    return losses


def multi_objective_step(world: World) -> Any:
    components = {"correctness": lambda *_: 1.0, "formatting": lambda *_: 0.5}
    return rlcore.MultiObjectiveRewardEnv(world.tokenizer, ["Say it."], components).step(world.end()).metrics


def comparison_step(world: World) -> Any:
    env = rlcore.PreferenceComparisonEnv(world.tokenizer, ["Say it."], human_feedback_fn=lambda *_: 1.0)
    env.reset()
    return env.step([5, 6]).metrics


def queued_step(world: World) -> Any:
    world.pipeline.forward_backward(**world.batch)
    return world.pipeline.optim_step(torch.optim.SGD(world.model.parameters(), lr=0.1)).result()


def pairwise(world: World) -> rlcore.PairwiseRewardModel:
    return rlcore.PairwiseRewardModel(world.reward_config)


def several(world: World) -> rlcore.MultiObjectiveRewardModel:
    return rlcore.MultiObjectiveRewardModel(world.reward_config)


CALLS: dict[str, Callable[[World], Any]] = {
    "PPOTrainer.train": ppo_training,
    "PPOModel.forward": lambda world: rlcore.PPOModel(world.model)(world.ids, world.mask, return_value=True),
    "ValueHead.forward": lambda world: rlcore.ValueHead(16)(torch.zeros(2, 7, 16)),
    "DPOTrainer.train": lambda world: dpo_trainer(world).train(world.pairs()),
    "DPOTrainer.evaluate": lambda world: dpo_trainer(world).evaluate(world.pairs()),
    "PreferenceDataset.__getitem__": lambda world: world.pairs()[0],
    "RewardModel.forward": lambda world: rlcore.RewardModel(world.reward_config)(world.ids, world.mask),
    "PairwiseRewardModel.forward_pair": lambda world: pairwise(world).forward_pair(
        world.ids, world.mask, world.ids[:, :3], world.mask[:, :3]
    ),
    "PairwiseRewardModel.compute_bradley_terry_loss": lambda world: pairwise(world).compute_bradley_terry_loss(
        world.ids, world.mask, world.ids[:, :3], world.mask[:, :3], torch.tensor([1, 0])
    ),
    "MultiObjectiveRewardModel.forward": lambda world: several(world)(
        world.ids, world.mask, return_all_objectives=True
    ),
    "MultiObjectiveRewardModel.compute_multi_objective_loss": several_objectives,
    "TextGenerationEnv.step": lambda world: (
        rlcore.TextGenerationEnv(world.tokenizer, ["Say it."]).step(world.end()).metrics
    ),
    "MultiObjectiveRewardEnv.step": multi_objective_step,
    "PreferenceComparisonEnv.step": comparison_step,
    "ForwardBackwardPipeline.forward_backward": lambda world: world.pipeline.forward_backward(**world.batch).result(),
    "ForwardBackwardPipeline.optim_step": queued_step,
    "ForwardBackwardPipeline.save_state": lambda world: world.pipeline.save_state("state"),
    "ForwardBackwardPipeline.sample": lambda world: world.pipeline.sample([4, 5, 6, 7], max_tokens=5),
    "AsyncTrainingClient.forward": lambda world: world.client.forward(world.batch).result(),
}


def test_every_row_of_the_table_is_called():
    assert CALLS.keys() == RETURNS.keys()


@pytest.mark.parametrize("path", RETURNS)
def test_a_documented_call_returns_the_documented_keys_and_shapes(path, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    returned = CALLS[path](World(models["google/gemma-2-2b"], models["bert-base-uncased"]))
    expected = RETURNS[path]
    if isinstance(expected, list):
        assert_shape(returned, expected)
        return
    values = vars_of(returned)
    # metrics are keys of one mapping; the attributes of an output may be more than the documented ones
    if isinstance(returned, Mapping):
        assert set(values) == set(expected)
    for name, shape in expected.items():
        assert_shape(values[name], shape)


def vars_of(returned: Any) -> Mapping[str, Any]:
    return asdict(returned) if is_dataclass(returned) else returned


def assert_shape(value: Any, expected: list[str | int] | str) -> None:
    if expected == "path":
        assert Path(value).exists()
        return
    shape = list(torch.as_tensor(value).shape)
    assert len(shape) == len(expected)
    for size, letter in zip(shape, expected, strict=True):
        known = letter if isinstance(letter, int) else SIZES.get(letter)
        assert known is None or size == known
