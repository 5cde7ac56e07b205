"""Several rewards from one head, their weighted sum, and targets of which some are missing."""

import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.reward import MultiObjectiveRewardModel
from tests.support.reward import RESPONSES, ROWS, body, config, padded, tokenizer

WEIGHTS = [0.5, 0.3, 0.2]
BATCH = padded(ROWS)
NAN = math.nan


def multi(weights=WEIGHTS, count: int = 3, **settings) -> MultiObjectiveRewardModel:
    return MultiObjectiveRewardModel(config(**settings), count, weights, body()).eval()


def model_that_rewards(rewards: list[list[float]], monkeypatch) -> MultiObjectiveRewardModel:
    """A model whose head says this, with weights 0.5, 0.3, 0.2."""
    model = multi()
    outputs = torch.tensor(rewards, requires_grad=True)
    monkeypatch.setattr(model, "head_outputs", lambda _ids, _mask=None: (outputs, {}))
    model.outputs = outputs
    return model


@torch.no_grad()
def test_the_documented_shapes():
    model = multi()
    every = model(*BATCH, return_all_objectives=True)
    assert every["rewards"].shape == (3, 3)
    assert every["combined_reward"].shape == (3, 1)
    alone = model(*BATCH)
    torch.testing.assert_close(alone["rewards"], every["combined_reward"])
    torch.testing.assert_close(alone["combined_reward"], every["combined_reward"])
    assert alone["pooled_output"].shape == (3, 16)
    torch.testing.assert_close(model(*BATCH, return_dict=False), every["combined_reward"])
    torch.testing.assert_close(model(*BATCH, True, False), every["rewards"])


@torch.no_grad()
def test_the_combined_reward_is_the_weighted_sum(monkeypatch):
    # 0.5 * 1 + 0.3 * 2 + 0.2 * 3 = 1.7; 0.5 * -1 + 0.3 * 0 + 0.2 * 10 = 1.5
    model = model_that_rewards([[1.0, 2.0, 3.0], [-1.0, 0.0, 10.0]], monkeypatch)
    torch.testing.assert_close(model(None, None)["rewards"], torch.tensor([[1.7], [1.5]]))
    torch.testing.assert_close(model.combine_objectives(torch.ones(4, 3)), torch.ones(4, 1))
    # normalised as a whole, while the objectives stay as they are: sums 6 and 9, (6 - 0.7) / 2 = 2.65
    model.objective_weights.fill_(1.0)
    model.reward_shift.fill_(0.7)
    model.reward_scale.fill_(2.0)
    outputs = model(None, None, return_all_objectives=True)
    torch.testing.assert_close(outputs["combined_reward"], torch.tensor([[2.65], [4.15]]))
    torch.testing.assert_close(outputs["rewards"], model.outputs)


@torch.no_grad()
def test_one_score_is_the_combined_reward():
    model = multi()
    torch.testing.assert_close(model.scores(*BATCH), model(*BATCH)["combined_reward"].squeeze(-1))
    combined = model.predict_rewards(RESPONSES, tokenizer())
    objectives = model.predict_objectives(RESPONSES, tokenizer())
    by_hand = [sum(weight * reward for weight, reward in zip(WEIGHTS, row, strict=True)) for row in objectives]
    assert combined == pytest.approx(by_hand, abs=1e-6)
    assert [len(row) for row in objectives] == [3, 3, 3]


@torch.no_grad()
def test_weights_are_uniform_by_default_and_used_as_they_are():
    torch.testing.assert_close(multi(None, 4).objective_weights, torch.full((4,), 0.25))
    torch.testing.assert_close(multi([2.0, 0.0, 4.0]).objective_weights, torch.tensor([2.0, 0.0, 4.0]))
    assert multi(None, 1)(*BATCH, return_all_objectives=True)["rewards"].shape == (3, 1)


def test_the_callers_config_is_unchanged_and_the_weights_are_saved():
    own = config()
    model = MultiObjectiveRewardModel(own, 3, WEIGHTS, body())
    assert own.num_labels == 1
    assert model.config.num_labels == 3
    torch.testing.assert_close(model.state_dict()["objective_weights"], torch.tensor(WEIGHTS))
    twin = multi(None)
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin.objective_weights, torch.tensor(WEIGHTS))


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1.0], "1 objective_weights for 3"),
        ([0.5, 0.5], "2 objective_weights for 3"),
        ([], "0 objective_weights for 3"),
        ([0.5, NAN, 0.5], "found nan"),
        ([0.5, math.inf, 0.5], "found inf"),
        ([0.5, -0.1, 0.6], "found -0.1"),
        ([0.5, "a", 0.6], "found 'a'"),
        ([0, 0, 0], "at least one above 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, match):
    with pytest.raises(ConfigError, match=match):
        multi(weights)


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_a_number_of_objectives_that_is_none_is_refused(count):
    with pytest.raises(ConfigError, match="num_objectives="):
        multi(None, count)


def test_num_labels_must_not_contradict_the_objectives():
    assert multi(num_labels=3).config.num_labels == 3
    with pytest.raises(ConfigError, match="num_labels=2, num_objectives=3"):
        multi(num_labels=2)


REWARDS = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
TARGETS = torch.tensor([[0.0, 2.0, 1.0], [2.0, 1.0, 0.0]])


def test_the_loss_by_hand(monkeypatch):
    # squared errors: 1 4 | 0 1 | 4 0; means 2.5, 0.5, 2; weighted 0.5 * 2.5 + 0.3 * 0.5 + 0.2 * 2 = 1.8
    model = model_that_rewards(REWARDS, monkeypatch)
    loss, parts = model.compute_multi_objective_loss(None, None, TARGETS)
    assert loss.item() == pytest.approx(1.8)
    assert parts == {name: pytest.approx(value) for name, value in zip(NAMES, (2.5, 0.5, 2.0), strict=True)}
    loss.backward()
    # d/dr of weight * (r - t)^2 / 2 is weight * (r - t)
    torch.testing.assert_close(model.outputs.grad, torch.tensor([[0.5, 0.0, 0.4], [-1.0, -0.3, 0.0]]))


NAMES = [f"objective_{index}_loss" for index in range(3)]


@pytest.mark.parametrize("mask", [[True, False, True], torch.tensor([1, 0, 1]), torch.tensor([[1, 0, 1], [1, 0, 1]])])
def test_a_mask_leaves_objectives_out(mask, monkeypatch):
    # without the second objective: 0.5 * 2.5 + 0.2 * 2 = 1.65
    model = model_that_rewards(REWARDS, monkeypatch)
    loss, parts = model.compute_multi_objective_loss(None, None, TARGETS, objective_mask=mask)
    assert loss.item() == pytest.approx(1.65)
    assert list(parts.values()) == pytest.approx([2.5, 0.0, 2.0])
    loss.backward()
    assert model.outputs.grad[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("how", ["nan", "mask"])
def test_a_missing_label_changes_its_own_mean_alone(how, monkeypatch):
    # row 0 has no label for the first objective: means 4 (of one row), 0.5, 2; 0.5 * 4 + 0.3 * 0.5 + 0.2 * 2 = 2.55
    model = model_that_rewards(REWARDS, monkeypatch)
    targets, mask = TARGETS.clone(), None
    if how == "nan":
        targets[0, 0] = NAN
    else:
        mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    loss, parts = model.compute_multi_objective_loss(None, None, targets, mask)
    assert loss.item() == pytest.approx(2.55)
    assert parts["objective_0_loss"] == pytest.approx(4.0)
    loss.backward()
    torch.testing.assert_close(model.outputs.grad, torch.tensor([[0.0, 0.0, 0.4], [-2.0, -0.3, 0.0]]))


@pytest.mark.parametrize("mask", [[False, False, False], None])
def test_no_label_at_all_is_a_zero_that_can_be_differentiated(mask):
    model = multi()
    targets = torch.full((3, 3), NAN) if mask is None else torch.zeros(3, 3)
    loss, parts = model.compute_multi_objective_loss(*BATCH, targets, mask)
    loss.backward()
    assert loss.item() == 0.0
    assert list(parts.values()) == [0.0, 0.0, 0.0]
    assert model.head.weight.grad.abs().sum() == 0
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize(
    ("targets", "mask", "match"),
    [
        (torch.zeros(3, 2), None, r"target_rewards of shape \[3, 2\], expected \[3, 3\]"),
        (torch.zeros(3), None, r"shape \[3\]"),
        (torch.zeros(3, 3), torch.ones(2), r"objective_mask of shape \[2\], expected \[3\] or \[3, 3\]"),
        (torch.zeros(3, 3), torch.ones(3, 1), r"objective_mask of shape \[3, 1\]"),
        (torch.zeros(3, 3), [0.5, 1, 1], "expected entries 0 and 1"),
        (torch.tensor([[0, 0, 0], [0, math.inf, 0], [0, 0, 0]]), None, r"Rows \[1\]: found an infinite target"),
    ],
)
def test_targets_and_masks_that_do_not_fit_are_refused(targets, mask, match):
    with pytest.raises(DataError, match=match):
        multi().compute_multi_objective_loss(*BATCH, targets, mask)


@pytest.mark.parametrize("counts", [[1, 2], [1, -1, 1], [1, NAN, 1]])
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(DataError, match="objective_counts"):
        multi().compute_multi_objective_loss(*BATCH, torch.zeros(3, 3), objective_counts=counts)


def test_another_number_of_rewards_cannot_be_combined():
    with pytest.raises(DataError, match=r"shape \[3, 2\], expected \[rows, 3\]"):
        multi().combine_objectives(torch.zeros(3, 2))
