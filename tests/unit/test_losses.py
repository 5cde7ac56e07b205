"""Losses: reductions, clipping, preference pairs, and what stays finite."""

import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.functional.kl import k1
from rlcore.functional.losses import (
    bradley_terry_loss,
    bradley_terry_pair_losses,
    centering_penalty,
    clip_fraction,
    clipped_value_loss,
    constant_length_mean,
    dpo_loss,
    dpo_pair_losses,
    explained_variance,
    implicit_rewards,
    importance_sampling_loss,
    log_odds_ratio,
    orpo_loss,
    ppo_policy_loss,
    ppo_total_loss,
    preference_accuracy,
    preference_probability,
    preference_ties,
    probability_ratio,
    reference_free_dpo_loss,
    sequence_mean,
    token_mean,
    value_clip_fraction,
)
from rlcore.functional.masking import masked_mean

NAN = math.nan
LN_2 = math.log(2)


def real(*rows):
    return torch.tensor(rows, dtype=torch.bool)


# Reductions


def test_named_reductions_of_the_same_token_losses():
    # rows [1, 1, 1, 1] and [3]: (1 + 3) / 2, 7 / 5 and 7 / (2 * 4)
    losses, mask = torch.tensor([[1.0, 1, 1, 1], [3, 9, 9, 9]]), real([1, 1, 1, 1], [1, 0, 0, 0])
    torch.testing.assert_close(sequence_mean(losses, mask), torch.tensor(2.0))
    torch.testing.assert_close(token_mean(losses, mask), torch.tensor(1.4))
    torch.testing.assert_close(constant_length_mean(losses, mask, max_length=4), torch.tensor(0.875))


def test_two_micro_batches_reduce_to_the_same_numbers():
    rows = [(torch.tensor([[1.0, 1, 1, 1]]), real([1, 1, 1, 1])), (torch.tensor([[3.0, 9, 9, 9]]), real([1, 0, 0, 0]))]
    assert sum(sequence_mean(*row, sequence_count=2) for row in rows).item() == 2
    assert sum(token_mean(*row, token_count=5) for row in rows).item() == pytest.approx(1.4)
    whole = sum(constant_length_mean(*row, max_length=4, sequence_count=2) for row in rows)
    assert whole.item() == 0.875


def test_a_masked_response_leaves_numerator_and_denominator():
    # Two finished tokens of loss 1; six tokens of a cut response: 2 / 2, not 2 / 8
    losses, mask = torch.ones(2, 6), real([1, 1, 0, 0, 0, 0], [0] * 6)
    assert token_mean(losses, mask).item() == 1


def test_the_mean_of_a_step_is_not_the_mean_of_its_micro_batches():
    # 8 tokens of loss 1 and 2 of loss 4: 16 / 10, not (1 + 4) / 2
    parts = [torch.ones(1, 8), torch.full((1, 2), 4.0)]
    assert sum(token_mean(x, torch.ones_like(x).bool(), 10) for x in parts).item() == pytest.approx(1.6)


def test_the_supervised_loss_of_a_response_counts_neither_prompt_nor_padding():
    # prompt 2 and 4, response 1 and 3, padding 9 and 9: 4 / 2; with the prompt 2.5, with the padding 4.67
    losses = torch.tensor([[2.0, 4.0, 1.0, 3.0, 9.0, 9.0]])
    assert token_mean(losses, torch.tensor([[False, False, True, True, False, False]])) == 2.0


@pytest.mark.parametrize("reduce", [token_mean, sequence_mean, lambda *args: constant_length_mean(*args, max_length=2)])
def test_without_real_tokens_loss_and_gradient_are_zero(reduce):
    losses = torch.tensor([[1.0, NAN]], requires_grad=True)
    loss = reduce(losses, real([0, 0]))
    loss.backward()
    assert loss.item() == 0
    assert losses.grad.tolist() == [[0, 0]]


# Policy


def test_an_unchanged_policy_has_ratio_one_and_loses_the_mean_advantage():
    # -mean(0.5, -1, 2)
    logprobs, advantages, mask = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[0.5, -1.0, 2.0]]), real([1, 1, 1])
    arguments = (logprobs, logprobs, advantages, mask)
    assert probability_ratio(logprobs, logprobs, mask).tolist() == [[1, 1, 1]]
    assert ppo_policy_loss(*arguments, clip_ratio=0.2).item() == -0.5
    assert importance_sampling_loss(*arguments).item() == -0.5
    assert clip_fraction(*arguments, clip_ratio=0.2).item() == 0
    assert masked_mean(k1(logprobs, logprobs), mask).item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (3.0, 2.0, -2.4, 0.0, 1),  # a gain beyond the clip earns nothing: 1.2 * 2
        (3.0, -2.0, 6.0, 6.0, 0),  # a loss beyond it is felt in full
        (0.5, 2.0, -1.0, -1.0, 0),
        (0.5, -2.0, 1.6, 0.0, 1),  # 0.8 * 2
        (1.1, 2.0, -2.2, -2.2, 0),
    ],
)
def test_the_clipped_surrogate(ratio, advantage, loss, gradient, clipped):
    logprobs = torch.tensor([[-1.0 + math.log(ratio)]], requires_grad=True)
    arguments = (logprobs, torch.tensor([[-1.0]]), torch.tensor([[advantage]]), real([1]))
    found = ppo_policy_loss(*arguments, clip_ratio=0.2)
    found.backward()
    torch.testing.assert_close(found, torch.tensor(loss))
    torch.testing.assert_close(logprobs.grad, torch.tensor([[gradient]]))
    assert clip_fraction(*arguments, clip_ratio=0.2).item() == clipped


def test_importance_sampling_is_not_clipped():
    logprobs = torch.tensor([[math.log(3.0), 0.0]])
    found = importance_sampling_loss(logprobs, torch.zeros(1, 2), torch.tensor([[2.0, NAN]]), real([1, 0]))
    torch.testing.assert_close(found, torch.tensor(-6.0))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("gap", [-500.0, 500.0])
def test_a_ratio_beyond_float32_keeps_loss_and_gradient_finite(advantage, gap):
    logprobs = torch.tensor([[gap]], requires_grad=True)
    arguments = (logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), real([1]))
    for loss in (ppo_policy_loss(*arguments, clip_ratio=0.2), importance_sampling_loss(*arguments)):
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_advantages_per_response_are_refused():
    with pytest.raises(DataError, match=r"advantages \[2, 1\]"):
        ppo_policy_loss(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 1), real([1, 1], [1, 1]), clip_ratio=0.2)


# Value


def test_value_clipping_takes_the_larger_error_of_each_token():
    # predictions 0.9, clipped 0.2: max(0.16, 0.09) and max(1.21, 3.24), half of the mean 1.7; min would give 0.325
    values = torch.tensor([[0.9, 0.9, NAN]], requires_grad=True)
    arguments = (values, torch.tensor([[0.0, 0.0, NAN]]), torch.tensor([[0.5, 2.0, NAN]]), real([1, 1, 0]))
    loss = clipped_value_loss(*arguments, value_clip=0.2)
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(0.85))
    assert value_clip_fraction(*arguments, value_clip=0.2).item() == 0.5
    # Token 0 is free: (0.9 - 0.5) / 2. Token 1 is clipped and learns nothing.
    torch.testing.assert_close(values.grad, torch.tensor([[0.2, 0.0, 0.0]]))


def test_without_a_clip_the_value_loss_is_half_the_squared_error():
    # ((0.4)^2 + (1.1)^2) / 4
    arguments = (torch.tensor([[0.9, 0.9]]), torch.zeros(1, 2), torch.tensor([[0.5, 2.0]]), real([1, 1]))
    torch.testing.assert_close(clipped_value_loss(*arguments, value_clip=None), torch.tensor(0.3425))
    assert value_clip_fraction(*arguments, value_clip=None).item() == 0


def test_values_per_response_are_refused():
    # [2] against [2, 2] would broadcast to garbage
    with pytest.raises(DataError, match=r"values \[2\]"):
        clipped_value_loss(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2), real([1, 1], [1, 1]), value_clip=None)


def test_explained_variance():
    returns, mask = torch.tensor([[1.0, 3.0, NAN]]), real([1, 1, 0])
    assert explained_variance(returns, returns, mask).item() == 1
    assert explained_variance(torch.full((1, 3), 7.0), returns, mask).item() == 0
    # residuals 0.5 and -0.5 against returns of deviation 1: 1 - 0.25
    assert explained_variance(torch.tensor([[1.5, 2.5, 0.0]]), returns, mask).item() == 0.75
    assert explained_variance(torch.tensor([[1.5, 2.5]]), torch.ones(1, 2), real([1, 1])).item() == 0


def test_the_total_adds_the_value_loss_and_subtracts_the_entropy():
    # 0.2 + 0.5 * 0.4 - 0.01 * 1.5; a second 0.5 would give 0.285
    parts = (torch.tensor(0.2), torch.tensor(0.4), torch.tensor(1.5))
    torch.testing.assert_close(ppo_total_loss(*parts, value_coef=0.5, entropy_coef=0.01), torch.tensor(0.385))


# DPO


def pair(*numbers):
    return [torch.tensor([number]) for number in numbers]


def test_dpo_starts_at_ln_2_with_a_gradient():
    chosen = torch.tensor([-10.0], requires_grad=True)
    loss = dpo_loss(chosen, *pair(-12.0, -10.0, -12.0), beta=0.1)
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(LN_2))
    torch.testing.assert_close(chosen.grad, torch.tensor([-0.05]))  # -beta / 2
    rewards = implicit_rewards(*pair(-10.0, -10.0), beta=0.1)
    assert preference_accuracy(rewards, rewards).item() == 0


def test_dpo_with_and_without_label_smoothing():
    # h = 0.1 ((-10 + 11) - (-12 + 11.5)) = 0.15: ln(1 + exp(-0.15)); smoothing 0.1 adds 0.1 h
    numbers = pair(-10.0, -12.0, -11.0, -11.5)
    torch.testing.assert_close(dpo_loss(*numbers, beta=0.1), torch.tensor(0.620957), atol=1e-6, rtol=0)
    smoothed = dpo_loss(*numbers, beta=0.1, label_smoothing=0.1)
    torch.testing.assert_close(smoothed, torch.tensor(0.635957), atol=1e-6, rtol=0)
    torch.testing.assert_close(implicit_rewards(*pair(-10.0, -11.0), beta=0.1), torch.tensor([0.1]))
    torch.testing.assert_close(implicit_rewards(*pair(-12.0, -11.5), beta=0.1), torch.tensor([-0.05]))


@pytest.mark.parametrize("smoothing", [-0.01, 0.51, NAN])
def test_more_than_half_of_the_labels_cannot_be_wrong(smoothing):
    with pytest.raises(ConfigError, match="expected 0 to 0.5"):
        dpo_pair_losses(*pair(0.0, 0.0), label_smoothing=smoothing)


def test_reference_free_dpo_is_dpo_against_zeros():
    chosen, rejected = pair(-10.0, -12.0)
    free = reference_free_dpo_loss(chosen, rejected, beta=0.1, label_smoothing=0.2)
    zeros = torch.zeros(1)
    torch.testing.assert_close(free, dpo_loss(chosen, rejected, zeros, zeros, beta=0.1, label_smoothing=0.2))
    # h = 0.2: 0.598139 + 0.2 * 0.2
    torch.testing.assert_close(free, torch.tensor(0.638139), atol=1e-6, rtol=0)


def test_pairs_of_unequal_number_are_refused():
    with pytest.raises(DataError, match=r"chosen \[4\], rejected \[1\]"):
        bradley_terry_loss(torch.zeros(4), torch.zeros(1))
    with pytest.raises(DataError, match="expected equal ones"):
        dpo_loss(torch.zeros(4), torch.zeros(1), torch.zeros(4), torch.zeros(1), beta=0.1)


# ORPO


def test_the_odds_ratio_keeps_its_digits_near_probability_one():
    # ln(1 - exp(-1e-7)) = -16.118096, and -16.66 less the odds of exp(-1), -0.541325; naive float32 gives -15.94
    found = log_odds_ratio(*pair(-1e-7, -1.0))
    torch.testing.assert_close(found, torch.tensor([16.65942]), rtol=1e-6, atol=0)
    loss = orpo_loss(*pair(-1e-7, -1.0, 1e-7), odds_coef=0.1)
    torch.testing.assert_close(loss, torch.tensor(1.0581977e-07), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("chosen", "rejected"), [(0.0, -2.5), (-2.5, 0.0), (0.0, 0.0), (-120.0, -1e-7), (1e-7, -1.0)])
def test_the_odds_ratio_stays_finite(chosen, rejected):
    leaves = [x.requires_grad_() for x in pair(chosen, rejected)]
    loss = orpo_loss(*leaves, torch.zeros(1), odds_coef=1.0)
    gradients = torch.autograd.grad(loss, leaves)
    assert loss.isfinite()
    assert all(gradient.isfinite() for gradient in gradients)


def test_hopeless_odds_cost_their_size():
    # log sigmoid(-120) is -120 and not -inf: odds of exp(-120) against even odds
    loss = orpo_loss(*pair(-120.0, -LN_2, 0.0), odds_coef=1.0)
    torch.testing.assert_close(loss, torch.tensor(120.0))


# Bradley-Terry


def test_bradley_terry_neither_overflows_nor_counts_ties_as_wins():
    # ln(1 + exp(-1)), ln 2, 200
    first, second = torch.tensor([1.0, 0.0, -200.0], requires_grad=True), torch.zeros(3)
    torch.testing.assert_close(
        bradley_terry_pair_losses(first, second), torch.tensor([0.313262, LN_2, 200.0]), atol=1e-6, rtol=0
    )
    loss = bradley_terry_loss(first, second)
    torch.testing.assert_close(loss, torch.tensor(67.002136))
    loss.backward()
    # A third of -sigmoid(-1), -sigmoid(0), -sigmoid(200)
    torch.testing.assert_close(first.grad, torch.tensor([-0.268941, -0.5, -1.0]) / 3, atol=1e-6, rtol=0)
    torch.testing.assert_close(preference_accuracy(first, second), torch.tensor(1 / 3))
    assert preference_ties(first, second).item() == 1
    torch.testing.assert_close(bradley_terry_loss(second[:1], first[:1]), torch.tensor(1.313262), atol=1e-6, rtol=0)


def test_a_margin_asks_for_more():
    # 2 - 0 - 2 = 0: ln 2
    torch.testing.assert_close(bradley_terry_loss(*pair(2.0, 0.0), margin=2.0), torch.tensor(LN_2))
    torch.testing.assert_close(bradley_terry_loss(*pair(2.0, 0.0), margin=torch.tensor([2.0])), torch.tensor(LN_2))


def test_pair_count_is_that_of_the_whole_step():
    torch.testing.assert_close(bradley_terry_loss(*pair(0.0, 0.0), pair_count=4), torch.tensor(LN_2 / 4))


def test_a_preference_and_its_opposite_add_up_to_one():
    first, second = torch.tensor([3.0, 0.5, -900.0]), torch.tensor([-1.0, 0.5, 0.0])
    forward, backward = preference_probability(first, second), preference_probability(second, first)
    torch.testing.assert_close(forward + backward, torch.ones(3))
    assert preference_probability(first, first).tolist() == [0.5] * 3


def test_centering_costs_the_square_of_the_sum():
    # 0.01 ((1 + 2)^2 + (1 - 1)^2) / 2
    penalty = centering_penalty(torch.tensor([1.0, 1.0]), torch.tensor([2.0, -1.0]), coef=0.01)
    torch.testing.assert_close(penalty, torch.tensor(0.045))
