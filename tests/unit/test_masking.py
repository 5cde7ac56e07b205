"""Masked statistics, masks of responses, and pooling."""

import math

import pytest
import torch

from rlcore.errors import DataError
from rlcore.functional.masking import (
    POOLINGS,
    last_index,
    masked_mean,
    masked_sum,
    masked_var,
    pool_cls,
    pool_last,
    pool_mean,
    position_ids_from,
    response_mask_from,
    scale_to_unit_std,
    whiten,
)

ADVANTAGES = torch.tensor([0.5, -0.25, 1.0, 9.0, 9.0])
REAL = torch.tensor([True, True, True, False, False])


def test_mean_and_population_variance_leave_padding_out():
    # (0.5 - 0.25 + 1) / 3; squares of (0.083333, -0.666667, 0.583333) over 3
    assert masked_sum(ADVANTAGES, REAL).item() == 1.25
    torch.testing.assert_close(masked_mean(ADVANTAGES, REAL), torch.tensor(1.25 / 3))
    torch.testing.assert_close(masked_var(ADVANTAGES, REAL), torch.tensor(0.2638889))


def test_mean_over_the_count_of_a_whole_step():
    assert masked_mean(ADVANTAGES, REAL, 5).item() == 0.25
    assert masked_mean(ADVANTAGES, REAL, torch.tensor(5)).item() == 0.25
    # Half a token per process is a legal share of a step on two processes.
    assert masked_mean(ADVANTAGES, REAL, 0.5).item() == 2.5


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_nothing_to_count_gives_zero_and_zero_gradient(count):
    x = torch.tensor([3.0, math.nan], requires_grad=True)
    mean = masked_mean(x, torch.tensor([False, False]), count)
    mean.backward()
    assert mean.item() == 0
    assert x.grad.tolist() == [0, 0]


def test_placeholders_on_padding_are_in_no_sum():
    # Surprise of two real tokens, 0.5 and 1.5 nats; a placeholder of +1 on each pad would make it 0 and less
    logprobs = torch.tensor([-0.5, -1.5, 1.0, 1.0])
    mask = torch.tensor([True, True, False, False])
    assert masked_sum(-logprobs, mask) == 2.0
    assert masked_mean(-logprobs, mask) == 1.0


def test_integers_and_half_precision_are_summed_in_float32():
    # bfloat16 has 8 bits: 256 + 1 is 256 in it, so that a sum in bfloat16 never passes 256.
    ones = torch.ones(300, dtype=torch.bfloat16)
    assert masked_sum(ones, ones.bool()).item() == 300
    assert masked_mean(torch.tensor([1, 2]), torch.tensor([True, True])).item() == 1.5


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(DataError, match=r"x \[2, 2\], mask \[2\]"):
        masked_mean(torch.ones(2, 2), torch.tensor([True, False]))


def test_whitening_leaves_padding_out():
    # mean 0.416667, population variance 0.263889; with padding the first would be -0.793135
    expected = torch.tensor([0.162221, -1.297771, 1.135550, 0.0, 0.0])
    torch.testing.assert_close(whiten(ADVANTAGES, REAL), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [-1.1, 0.3, 1000.1])
def test_whitening_equal_entries_gives_exactly_zero(value):
    x = torch.full((7,), value)
    assert whiten(x, torch.ones(7, dtype=torch.bool)).tolist() == [0] * 7


def test_whitening_a_single_entry_gives_zero():
    assert whiten(torch.tensor([9.0, -3.0]), torch.tensor([False, True])).tolist() == [0, 0]


def test_scaling_keeps_the_mean():
    # mean 1, deviation sqrt(1.5): 1 + (x - 1) / 1.224745
    rewards = torch.tensor([1.0, 0.0, 0.0, 3.0])
    scaled = scale_to_unit_std(rewards, torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(scaled, torch.tensor([1.0, 0.183503, 0.183503, 2.632993]))


def test_scaling_equal_entries_changes_nothing():
    x = torch.tensor([2.0, 2.0, 7.0])
    assert scale_to_unit_std(x, torch.tensor([True, True, False])).tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5, 7, 2, 2, 2], [1, 1, 1, 0, 0]),  # the pad is the EOS: the first one was sampled
        ([5, 7, 9, 4, 6], [1, 1, 1, 1, 1]),  # cut by the length limit
        ([2, 2, 2, 2, 2], [1, 0, 0, 0, 0]),  # ended at once
        ([5, 3, 0, 0, 2], [1, 1, 0, 0, 0]),  # a second end token
        ([0, 5, 2, 7, 9], [1, 1, 1, 0, 0]),  # id 0 is a token like any other
    ],
)
def test_a_response_ends_with_its_first_eos(ids, expected):
    mask = response_mask_from(torch.tensor([ids]), [2, 3])
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [expected]


def test_without_an_eos_all_tokens_are_real():
    assert response_mask_from(torch.tensor([[2, 2]]), []).all()


def test_last_index_on_either_side_of_the_padding():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 0]])
    assert last_index(mask).tolist() == [1, 3, 3, 2]
    assert last_index(mask.bool()).tolist() == [1, 3, 3, 2]


def test_a_row_without_tokens_is_named():
    with pytest.raises(DataError, match=r"Rows \[1\] have no real token"):
        last_index(torch.tensor([[True], [False]]))
    with pytest.raises(DataError):
        last_index(torch.ones(2, 0, dtype=torch.bool))


def test_left_padding_does_not_move_positions():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert position_ids_from(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2]]


HIDDEN = torch.tensor([[[10.0], [20.0], [30.0], [40.0]]]).expand(3, 4, 1)
SIDES = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("pool", "expected"), [(pool_last, [20, 40, 40]), (pool_cls, [10, 30, 10]), (pool_mean, [15, 35, 25])]
)
def test_pooling_on_either_side_of_the_padding(pool, expected):
    assert pool(HIDDEN, SIDES).flatten().tolist() == expected


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_keeps_padding_out_of_value_and_gradient(name):
    hidden = torch.tensor([[[1.0], [3.0], [math.nan]]], requires_grad=True)
    POOLINGS[name](hidden, torch.tensor([[1, 1, 0]])).sum().backward()
    expected = {"last": [0, 1, 0], "cls": [1, 0, 0], "mean": [0.5, 0.5, 0]}
    assert hidden.grad.flatten().tolist() == expected[name]


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_an_empty_row_is_an_error(name):
    with pytest.raises(DataError, match=r"Rows \[0\]"):
        POOLINGS[name](torch.ones(1, 2, 1), torch.tensor([[0, 0]]))


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_keeps_the_precision_of_the_model(name):
    assert POOLINGS[name](HIDDEN.bfloat16(), SIDES).dtype == torch.bfloat16
