"""The losses of reward models in float64: by hand, against finite differences, and cut into micro-batches."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.functional.losses import bradley_terry_pair_losses, preference_label_loss, preference_label_losses
from rlcore.reward import MultiObjectiveRewardModel, PairwiseRewardModel, RewardModel
from rlcore.reward.labels import labelled_rows
from rlcore.reward.multi_objective import labelled_entries, objective_losses
from tests.support.reward import PAD, ROWS, body, config, padded

BATCH = padded(ROWS)
NAN = math.nan


def float64(*values: object) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def test_label_losses_by_hand():
    # margins 1, -2, 0.5 with labels 1, 0, 0.3:
    # ln(1 + e^-1) = 0.31326168751822286; ln(1 + e^-2) = 0.1269280110429726;
    # 0.3 ln(1 + e^-0.5) + 0.7 ln(1 + e^0.5) = 0.3 * 0.4740769841801067 + 0.7 * 0.9740769841801067 = 0.8240769841801067
    first, second, labels = float64([2.0, -1.0, 0.25], [1.0, 1.0, -0.25], [1.0, 0.0, 0.3])
    expected = torch.tensor([0.31326168751822286, 0.1269280110429726, 0.8240769841801067], dtype=torch.float64)
    torch.testing.assert_close(preference_label_losses(first, second, labels), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(preference_label_loss(first, second, labels, pair_count=6), expected.sum() / 6)


def test_a_hard_label_is_a_bradley_terry_pair():
    first, second, ones = float64([800.0, -3.0, 0.5], [-20.0, -3.0, 900.0], [1.0, 1.0, 1.0])
    torch.testing.assert_close(preference_label_losses(first, second, ones), bradley_terry_pair_losses(first, second))
    torch.testing.assert_close(
        preference_label_losses(first, second, 0 * ones), bradley_terry_pair_losses(second, first)
    )


def test_label_losses_have_the_gradient_of_their_differences():
    first, second, labels = float64([2.0, -1.0, 0.25, 30.0], [1.0, 1.0, -0.25, -8.0], [1.0, 0.0, 0.3, 1.0])
    first.requires_grad_(), second.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: preference_label_losses(a, b, labels), (first, second))


def test_objective_losses_by_hand_in_float64():
    # errors 0.1 -0.2 | 0.3 (missing) | -0.5 0.4: (0.01 + 0.09 + 0.25) / 3 = 0.35 / 3 and (0.04 + 0.16) / 2 = 0.1
    rewards, targets = float64([[1.1, 0.8], [2.3, 7.0], [0.5, 1.4]], [[1.0, 1.0], [2.0, NAN], [1.0, 1.0]])
    losses = objective_losses(rewards, targets, labelled_entries(targets, (3, 2)))
    torch.testing.assert_close(losses, torch.tensor([0.35 / 3, 0.1], dtype=torch.float64), rtol=1e-12, atol=0)


def test_objective_losses_have_the_gradient_of_their_differences():
    rewards, targets = float64([[1.1, 0.8], [2.3, 7.0], [0.5, 1.4]], [[1.0, NAN], [2.0, NAN], [NAN, 1.0]])
    labelled = labelled_entries(targets, (3, 2))
    rewards.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: objective_losses(x, targets, labelled), (rewards,))


ENTRY = st.one_of(st.just(NAN), st.floats(-10, 10))
ROW = st.tuples(st.floats(-10, 10), st.floats(-10, 10), ENTRY, ENTRY, st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROW, min_size=2, max_size=7), cut=st.integers(1, 6))
def test_missing_labels_and_any_cut_of_the_batch(rows, cut):
    """What is not labelled has no say, and parts over the counts of the whole add up to the whole."""
    numbers = torch.tensor([row[:4] for row in rows], dtype=torch.float64)
    rewards, targets = numbers[:, :2].clone().requires_grad_(), numbers[:, 2:]
    labelled = labelled_entries(targets, (len(rows), 2), torch.tensor([row[4:] for row in rows]))
    whole = objective_losses(rewards, targets, labelled)
    for index in range(2):
        kept = labelled[:, index]
        errors = (rewards[kept, index] - targets[kept, index]).square()
        expected = errors.mean() if kept.any() else torch.zeros((), dtype=torch.float64)
        torch.testing.assert_close(whole[index], expected)
    (gradient,) = torch.autograd.grad(whole.sum(), rewards)
    assert gradient.isfinite().all()
    assert not gradient[~labelled].any()
    counts = labelled.sum(dim=0)
    parts = [
        objective_losses(rewards[part], targets[part], labelled[part], counts)
        for part in (slice(0, cut), slice(cut, None))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)


def double(model: RewardModel) -> RewardModel:
    """In float64 and evaluation mode, so that only the cut of the batch can matter."""
    return model.double().eval()


def gradients(model: RewardModel) -> dict[str, torch.Tensor]:
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # hidden states are float32 in places, whatever the weights are
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-7, msg=name)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3


def test_micro_batches_of_objectives_add_up_to_one_batch():
    model = double(MultiObjectiveRewardModel(config(), 3, [0.5, 0.3, 0.2], body()))
    (targets,) = float64([[1.0, NAN, 2.0], [0.5, -1.0, NAN], [NAN, 2.0, 1.0]])
    loss, parts = model.compute_multi_objective_loss(*BATCH, targets)
    loss.backward()
    expected = gradients(model)
    counts = (~targets.isnan()).sum(dim=0)
    sums = dict.fromkeys(parts, 0.0)
    for row in range(3):
        ids, mask, target = (tensor[row : row + 1] for tensor in (*BATCH, targets))
        part, own_parts = model.compute_multi_objective_loss(ids, mask, target, objective_counts=counts)
        part.backward()
        sums = {name: total + own_parts[name] for name, total in sums.items()}
    assert sums == pytest.approx(parts, abs=1e-9)
    assert_same(gradients(model), expected)


def test_steps_over_labelled_rows_add_up_to_the_loss_over_all():
    # over all rows, a step's share of the labels is their number, so the loss is compute_multi_objective_loss
    model = double(MultiObjectiveRewardModel(config(), 3, [0.5, 0.3, 0.2], body()))
    targets = [[1.0, None, 2.0], [0.5, -1.0, None], [None, 2.0, 1.0]]
    rows = labelled_rows(ROWS, targets, 3, pad_id=PAD, seed=0, owner="targets")
    whole, parts = model.compute_multi_objective_loss(*BATCH, rows.targets)
    whole.backward()
    expected = gradients(model)
    total, sums = 0.0, {}
    for part in ([0, 2], [1]):
        loss, own_sums = rows.loss(model, part, pair_count=3, step=0)
        loss.backward()
        total += loss.item()
        sums = {name: sums.get(name, 0.0) + value.item() for name, value in own_sums.items()}
    assert total == pytest.approx(whole.item(), rel=1e-6)
    summary = rows.summary(sums, 3)
    assert summary.pop("reward_model/loss") == pytest.approx(whole.item(), rel=1e-6)
    assert list(summary.values()) == pytest.approx(list(parts.values()), rel=1e-6)
    assert_same(gradients(model), expected)


def test_a_pair_scores_the_same_in_the_gradient_whoever_comes_first():
    model = double(PairwiseRewardModel(config(), body()))
    other = padded(ROWS[::-1])
    labels = torch.tensor([1.0, 0.25, 0.0])
    model.compute_bradley_terry_loss(*BATCH, *other, labels).backward()
    expected = gradients(model)
    model.compute_bradley_terry_loss(*other, *BATCH, 1 - labels).backward()
    assert_same(gradients(model), expected)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_preference_loss_has_the_gradient_of_its_differences(name):
    model = RewardModel(config(), body(name)).eval()
    pair = (*BATCH, *padded(ROWS[::-1]))
    model.compute_preference_loss(*pair).backward()
    gradient, weight = model.head.weight.grad, model.head.weight
    # float32: a step of 1e-2 leaves errors of 1e-4 from curvature and 1e-5 from rounding
    for column in range(4):
        losses = []
        for step in (1e-2, -1e-2):
            with torch.no_grad():
                weight[0, column] += step
                losses.append(model.compute_preference_loss(*pair).item())
                weight[0, column] -= step
        assert gradient[0, column].item() == pytest.approx((losses[0] - losses[1]) / 2e-2, abs=2e-4)
