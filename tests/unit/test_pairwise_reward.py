"""The pairwise model is Bradley-Terry: its preference for A is minus its preference for B."""

import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.reward import PairwiseRewardModel
from tests.support.reward import BODIES, ROWS, body, config, padded


def pairwise(name: str = "llama", **settings) -> PairwiseRewardModel:
    return PairwiseRewardModel(config(**settings), body(name)).eval()


FIRST, SECOND = padded(ROWS), padded([ROWS[2], ROWS[0], ROWS[1][:4]])


@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_the_probabilities_of_both_orders_add_up_to_one(name):
    # sigmoid(x) + sigmoid(-x) = 1, so nothing but float32's rounding is left of the two orders
    model = pairwise(name)
    forth, back = model.forward_pair(*FIRST, *SECOND), model.forward_pair(*SECOND, *FIRST)
    assert forth.shape == (3, 1)
    torch.testing.assert_close(forth.sigmoid() + back.sigmoid(), torch.ones(3, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(back, -forth, rtol=0, atol=1e-6)
    assert forth.abs().min() > 1e-4


@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_a_text_compared_with_itself_is_a_tie(name):
    model = pairwise(name)
    assert torch.equal(model.forward_pair(*FIRST, *FIRST).sigmoid(), torch.full((3, 1), 0.5))
    # with dropout, too, and beside a pair of unequal texts in the same pass
    scores = model.train().forward_pair(*FIRST, *padded([ROWS[0], ROWS[0], ROWS[2]]))
    assert [score == 0 for score in scores.flatten().tolist()] == [True, False, True]


@torch.no_grad()
def test_a_text_and_its_padded_twin_tie_up_to_rounding():
    left = padded(ROWS, left=4)
    torch.testing.assert_close(pairwise().forward_pair(*FIRST, *left), torch.zeros(3, 1), rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_score_is_the_difference_of_two_rewards():
    model = pairwise(temperature=2.0)
    expected = model.scores(*FIRST) - model.scores(*SECOND)
    torch.testing.assert_close(model.forward_pair(*FIRST, *SECOND).squeeze(-1), expected)


def model_that_scores(rewards: list[float], monkeypatch) -> PairwiseRewardModel:
    model = pairwise()
    monkeypatch.setattr(model, "scores", lambda _ids, _mask: torch.tensor(rewards))
    return model


def test_the_loss_is_the_cross_entropy_of_the_label(monkeypatch):
    # scores 1, 0, -200. Label 1: ln(1 + e^-1) = 0.313262, ln 2 = 0.693147, 200. Label 0 for the first: 1.313262.
    model = model_that_scores([1.0, 0.0, -200.0, 0.0, 0.0, 0.0], monkeypatch)
    ids = torch.zeros((3, 2), dtype=torch.int64)
    pair = (ids, torch.ones_like(ids), ids, torch.ones_like(ids))
    loss = model.compute_bradley_terry_loss
    assert loss(*pair, torch.tensor([1, 1, 1])).item() == pytest.approx((0.313262 + 0.693147 + 200) / 3)
    assert loss(*pair, torch.tensor([0, 1, 1])).item() == pytest.approx((1.313262 + 0.693147 + 200) / 3)
    # a quarter of the judges prefer the first: 0.25 * 0.313262 + 0.75 * 1.313262 = 1.063262
    assert loss(*pair, torch.tensor([0.25, 1, 0])).item() == pytest.approx((1.063262 + 0.693147 + 0) / 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_labels_may_be_of_any_number_type_and_one_column(dtype):
    model, labels = pairwise(), torch.tensor([1, 0, 1])
    expected = model.compute_bradley_terry_loss(*FIRST, *SECOND, labels.double())
    for found in (labels, labels[:, None]):
        torch.testing.assert_close(model.compute_bradley_terry_loss(*FIRST, *SECOND, found.to(dtype)), expected)


def test_a_single_pair_trains():
    model = pairwise()
    loss = model.compute_bradley_terry_loss(*padded(ROWS[:1]), *padded(ROWS[1:2]), torch.tensor([1]))
    loss.backward()
    assert loss.shape == ()
    assert model.head.weight.grad.abs().sum() > 0


def test_both_sides_are_read_in_one_pass():
    model, calls = pairwise(), []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    model.compute_bradley_terry_loss(*FIRST, *SECOND, torch.tensor([1, 0, 1])).backward()
    assert len(calls) == 1


def test_training_turns_the_preference_round():
    model = pairwise(dropout_prob=0.0)
    with torch.no_grad():
        before = model.forward_pair(*FIRST, *SECOND)
    labels = (before < 0).float()  # the contrary of what the model prefers
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        model.compute_bradley_terry_loss(*FIRST, *SECOND, labels).backward()
        optimizer.step()
    with torch.no_grad():
        after = model.forward_pair(*FIRST, *SECOND)
    assert torch.equal(after > 0, labels > 0.5)
    # the reward of one text is trained with it, whoever it is compared with
    assert model.compute_preference_loss(*FIRST, *SECOND).item() != pytest.approx(math.log(2), abs=0.05)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (torch.tensor([1, 0]), r"shape \[2\] for 3 pairs"),
        (torch.ones(3, 3), r"shape \[3, 3\] for 3 pairs"),
        (torch.tensor(1), r"shape \[\] for 3 pairs"),
        (torch.tensor([1.0, 2.0, 0.0]), r"Labels \[1\]: found \[2.0\]"),
        (torch.tensor([1.0, 0.5, math.nan]), r"Labels \[2\]: found \[nan\]"),
        (torch.tensor([-1, 1, 0]), r"Labels \[0\]: found \[-1.0\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, match):
    with pytest.raises(DataError, match=match):
        pairwise().compute_bradley_terry_loss(*FIRST, *SECOND, labels)


def test_sides_that_do_not_fit_are_refused():
    model = pairwise()
    with pytest.raises(DataError, match="3 rows on one side of the pairs and 2"):
        model.forward_pair(*FIRST, *padded(ROWS[:2]))
    with pytest.raises(DataError, match=r"attention_mask \[3, 8\]"):
        model.forward_pair(FIRST[0], FIRST[1][:, 1:], *SECOND)
    with pytest.raises(DataError, match="no real token"):
        model.forward_pair(FIRST[0], torch.zeros_like(FIRST[1]), *SECOND)


def test_more_than_one_output_is_refused():
    with pytest.raises(ConfigError, match="num_labels=3: expected 1"):
        pairwise(num_labels=3)
