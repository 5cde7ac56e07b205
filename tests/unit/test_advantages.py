"""Token rewards, generalised advantages, and advantages within groups."""

import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.functional.advantages import (
    SCALINGS,
    gae,
    gae_flat,
    group_relative_advantages,
    leave_one_out_advantages,
    token_rewards,
)

NAN = math.nan


def test_the_score_lands_on_the_last_real_token():
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    rewards = token_rewards(torch.zeros(2, 5), torch.tensor([2.0, 3.0]), mask, kl_coef=0.5)
    assert rewards.tolist() == [[0, 0, 2, 0, 0], [0, 0, 0, 0, 3]]
    advantages, _ = gae(rewards, torch.zeros(2, 5), mask, torch.zeros(2), gamma=1, lam=1)
    assert advantages.tolist() == [[2, 2, 2, 0, 0], [3] * 5]


def test_moving_away_from_the_reference_costs():
    # k1 = (0.5, -0.25) at weight 0.2: -0.1 and +0.05, the score 1 on the second
    rewards = token_rewards(
        torch.tensor([[0.5, -0.25, NAN]]), torch.tensor([1.0]), torch.tensor([[True, True, False]]), kl_coef=0.2
    )
    torch.testing.assert_close(rewards, torch.tensor([[-0.1, 1.05, 0.0]]))


def test_a_response_without_tokens_has_no_place_for_its_score():
    with pytest.raises(DataError, match=r"Rows \[1\]"):
        token_rewards(torch.zeros(2, 1), torch.ones(2), torch.tensor([[True], [False]]), kl_coef=0.1)


def test_one_score_per_token_is_refused():
    with pytest.raises(DataError, match=r"scores \[2, 2\]"):
        token_rewards(torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), kl_coef=0.1)


def test_values_on_padding_do_not_leak():
    # A_1 = 1 - 0.25 = 0.75; A_0 = 0.25 - 0.5 + 0.95 * 0.75 = 0.4625; V(pad) = 100 must not be the next value
    advantages, returns = gae(
        torch.tensor([[0.0, 1.0, 5.0]]),
        torch.tensor([[0.5, 0.25, 100.0]]),
        torch.tensor([[True, True, False]]),
        torch.zeros(1),
        gamma=1,
        lam=0.95,
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.4625, 0.75, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[0.9625, 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("bootstrap", "advantages", "returns"),
    [
        (0.8, [0.906701, 0.756726, 0.492], [1.306701, 1.256726, 1.092]),  # cut by the length limit
        (0.0, [0.206145, 0.01185, -0.3], [0.606145, 0.51185, 0.3]),  # ended by EOS
    ],
)
def test_a_cut_response_is_not_the_end(bootstrap, advantages, returns):
    # last token: 0.3 + 0.99 * bootstrap - 0.6
    found = gae(
        torch.tensor([[0.1, 0.2, 0.3]]),
        torch.tensor([[0.4, 0.5, 0.6]]),
        torch.ones(1, 3, dtype=torch.bool),
        torch.tensor([bootstrap]),
        gamma=0.99,
        lam=0.95,
    )
    torch.testing.assert_close(found, (torch.tensor([advantages]), torch.tensor([returns])), atol=1e-6, rtol=0)


def test_lambda_one_is_the_discounted_return_less_the_value():
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 3, 6, dtype=torch.float64, generator=generator)
    _, returns = gae(rewards, values, torch.ones(3, 6, dtype=torch.bool), torch.zeros(3), gamma=0.9, lam=1.0)
    discounts = 0.9 ** torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(returns[:, 0], (rewards * discounts).sum(1))
    torch.testing.assert_close(returns[:, 5], rewards[:, 5])


def test_whole_number_rewards_do_not_truncate_advantages():
    # Cut to integers all would be 0: 1 - 0.3 = 0.7; 0.99 * 0.3 - 0.2 + 0.9405 * 0.7 = 0.755350; 0.808407
    advantages, _ = gae(
        torch.tensor([[0, 0, 1]]),
        torch.tensor([[0.1, 0.2, 0.3]]),
        torch.ones(1, 3, dtype=torch.bool),
        torch.zeros(1),
        gamma=0.99,
        lam=0.95,
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.808407, 0.755350, 0.7]]), atol=1e-6, rtol=0)
    integers = torch.tensor([[1, 1]])
    halves, _ = gae(integers, integers, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1), gamma=0.5, lam=0)
    torch.testing.assert_close(halves, torch.tensor([[0.5, 0.0]]))


def test_values_per_response_are_refused():
    with pytest.raises(DataError, match=r"values \[2\]"):
        gae(torch.zeros(2, 2), torch.zeros(2), torch.ones(2, 2, dtype=torch.bool), torch.zeros(2), gamma=1, lam=1)


def test_an_episode_ends_for_the_sum_when_cut_and_for_the_value_only_when_terminated():
    # Three steps, the first two each end an episode: 1 + 0 - 0.5; 1 + 0.5 * 4 - 0.5; 1 + 0.5 * 4 - 0.5
    ends = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    advantages, returns = gae_flat(torch.ones(3), torch.full((3,), 0.5), torch.full((3,), 4.0), *ends, gamma=0.5, lam=1)
    torch.testing.assert_close(advantages, torch.tensor([0.5, 2.5, 2.5]))
    torch.testing.assert_close(returns, torch.tensor([1.0, 3.0, 3.0]))


def test_gae_flat_of_one_episode_is_gae():
    rewards, values = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    terminated = torch.tensor([False] * 4 + [True])
    next_values = torch.cat([values[1:], torch.tensor([7.0])])
    flat = gae_flat(rewards, values, next_values, terminated, torch.zeros(5, dtype=torch.bool), gamma=0.9, lam=0.8)
    mask = torch.ones(1, 5, dtype=torch.bool)
    masked = gae(rewards[None], values[None], mask, torch.zeros(1), gamma=0.9, lam=0.8)
    torch.testing.assert_close(flat, tuple(found[0] for found in masked))


def test_a_group_of_equal_scores_gets_exactly_zero():
    # Sample deviation of [1, 0, 0, 0] is 0.5: 0.75 / 0.5001; the population's 0.433013: 0.75 / 0.433113
    scores = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    group_ids = torch.tensor([0] * 4 + [1] * 4)
    expected = torch.tensor([0, 0, 0, 0, 1.4997, -0.4999, -0.4999, -0.4999])
    torch.testing.assert_close(group_relative_advantages(scores, group_ids), expected, atol=1e-5, rtol=0)
    population = group_relative_advantages(scores, group_ids, correction=0)
    torch.testing.assert_close(population[4:], torch.tensor([1.731651, -0.577217, -0.577217, -0.577217]))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("size", [1, 3, 6, 7])
def test_rounding_of_the_mean_leaves_no_advantage(scaling, size):
    # Three times 1000.1 over 3 is not 1000.1 in float32; the residue must not meet a deviation near 0.
    scores = torch.full((size,), 1000.1)
    group_ids = torch.zeros(size, dtype=torch.int64)
    assert group_relative_advantages(scores, group_ids, scaling=scaling).tolist() == [0] * size
    assert leave_one_out_advantages(scores, group_ids).tolist() == [0] * size


def test_a_missing_score_is_in_no_mean_and_gets_zero():
    scores, group_ids = torch.tensor([1.0, NAN, 0.0, 0.5]), torch.zeros(4, dtype=torch.int64)
    # mean 0.5, sample deviation 0.5: 0.5 / 0.5001
    expected = torch.tensor([0.9998, 0.0, -0.9998, 0.0])
    torch.testing.assert_close(group_relative_advantages(scores, group_ids), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(leave_one_out_advantages(scores, group_ids), torch.tensor([0.75, 0.0, -0.75, 0.0]))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_group_without_any_score_gets_zero(scaling):
    scores, group_ids = torch.tensor([NAN, NAN, 1.0, 0.0]), torch.tensor([5, 5, 9, 9])
    found = group_relative_advantages(scores, group_ids, scaling=scaling)
    assert found[:2].tolist() == [0, 0]
    assert found[2] == -found[3] > 0


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_sign_is_that_of_the_score_less_the_mean(scaling):
    found = group_relative_advantages(torch.tensor([-1.0, -3.0]), torch.tensor([0, 0]), scaling=scaling)
    assert found[0] > 0 > found[1]


def test_named_scalings():
    # Deviations 0.5 and 1.5 about the means. Population deviation of [0, 1, 10, 13]: sqrt(31.5) = 5.612486
    scores, group_ids = torch.tensor([0.0, 10.0, 1.0, 13.0]), torch.tensor([0, 1, 0, 1])
    for scaling, expected in (
        ("group", [-1.0, -1.0, 1.0, 1.0]),
        ("batch", [-0.089087, -0.267261, 0.089087, 0.267261]),
        ("none", [-0.5, -1.5, 0.5, 1.5]),
    ):
        found = group_relative_advantages(scores, group_ids, scaling=scaling, correction=0, epsilon=0)
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


def test_an_unknown_scaling_lists_the_known_ones():
    with pytest.raises(ConfigError, match="group, batch, none"):
        group_relative_advantages(torch.zeros(2), torch.zeros(2), scaling="rank")


def test_an_infinite_score_is_named():
    with pytest.raises(DataError, match=r"responses \[1\]"):
        group_relative_advantages(torch.tensor([0.0, math.inf]), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 1, 0, 0, 0, 0], [0.8, 0.8, -0.4, -0.4, -0.4, -0.4]),  # 1 - 1/5 and 0 - 2/5
        ([0.2, 0.4, 0.0, 1.0], [0.2 - 1.4 / 3, 0.0, -1.6 / 3, 0.8]),
    ],
)
def test_the_baseline_is_the_mean_of_the_others(scores, expected):
    found = leave_one_out_advantages(torch.tensor(scores), torch.zeros(len(scores), dtype=torch.int64))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


def test_groups_may_lie_in_any_order():
    scores, group_ids = torch.tensor([0.0, 5.0, 2.0, 9.0]), torch.tensor([7, 3, 7, 3])
    assert leave_one_out_advantages(scores, group_ids).tolist() == [-2, -4, 2, 4]
