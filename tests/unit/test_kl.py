"""Estimators of the divergence from the reference: the field's numbers, and what happens far out."""

import math

import pytest
import torch

from rlcore.errors import DataError
from rlcore.functional.kl import k1, k2, k3, sequence_kl
from rlcore.functional.masking import masked_mean
from rlcore.functional.precision import bounded_exp, bounded_expm1

LOGPROBS = torch.tensor([-1.2, -0.7, -3.0])
REF_LOGPROBS = torch.tensor([-0.9, -0.7, -1.0])


def test_k1_is_the_policy_less_the_reference():
    # Negative where the reference likes the token more: the mean of these three is -0.766667
    torch.testing.assert_close(k1(LOGPROBS, REF_LOGPROBS), torch.tensor([-0.3, 0.0, -2.0]))


def test_k2_and_k3_are_never_negative():
    torch.testing.assert_close(k2(LOGPROBS, REF_LOGPROBS), torch.tensor([0.045, 0.0, 2.0]))
    # exp(0.3) - 1 - 0.3 and exp(2) - 1 - 2
    torch.testing.assert_close(k3(LOGPROBS, REF_LOGPROBS), torch.tensor([0.049859, 0.0, 4.389056]), atol=1e-6, rtol=0)


def test_padding_is_in_no_mean_of_an_estimator():
    # (-0.3 + 0 - 2) / 3 and (0.049859 + 0 + 4.389056) / 3, whatever placeholders stand behind them
    padding, mask = torch.tensor([1.0, 0.0]), torch.tensor([True, True, True, False, False])
    pair = torch.cat([LOGPROBS, padding]), torch.cat([REF_LOGPROBS, padding.flip(0)])
    torch.testing.assert_close(masked_mean(k1(*pair), mask), torch.tensor(-0.766667), atol=1e-6, rtol=0)
    torch.testing.assert_close(masked_mean(k3(*pair), mask), torch.tensor(1.479638), atol=1e-6, rtol=0)


def test_k3_keeps_its_digits_near_zero():
    # x^2 / 2 = 5e-9 for x = 1e-4; exp(x) - 1 - x in float32 has no correct digit there
    found = k3(torch.tensor([0.0]), torch.tensor([1e-4]))
    torch.testing.assert_close(found, torch.tensor([5e-9]), rtol=1e-2, atol=0)


@pytest.mark.parametrize("gap", [40.0, 100.0, 1000.0])
def test_a_token_that_one_model_excludes_keeps_all_finite(gap):
    for logprob, ref_logprob in ((0.0, -gap), (-gap, 0.0)):
        logprobs = torch.tensor([logprob], requires_grad=True)
        for estimator in (k1, k2, k3):
            value = estimator(logprobs, torch.tensor([ref_logprob]))
            (gradient,) = torch.autograd.grad(value.sum(), logprobs)
            assert value.isfinite().all()
            assert gradient.isfinite().all()


def test_k3_is_exact_up_to_40_nats_and_still_pulls_beyond():
    torch.testing.assert_close(k3(torch.tensor([-39.0]), torch.tensor([0.0])), torch.tensor([math.exp(39) - 40]))
    logprobs = torch.tensor([-90.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(k3(logprobs, torch.tensor([0.0])).sum(), logprobs)
    assert gradient.item() < -1e17


def test_the_bounded_exponential_is_the_exponential_where_it_matters():
    x = torch.linspace(-50, 39, 90, dtype=torch.float64)
    torch.testing.assert_close(bounded_exp(x), x.exp())
    torch.testing.assert_close(bounded_expm1(x), x.expm1())
    far = torch.tensor([41.0, 400.0])
    torch.testing.assert_close(bounded_exp(far), math.exp(40) * torch.tensor([2.0, 361.0]))
    torch.testing.assert_close(bounded_expm1(far), math.exp(40) * torch.tensor([2.0, 361.0]))


def test_half_precision_is_compared_in_float32():
    assert k1(LOGPROBS.bfloat16(), REF_LOGPROBS.bfloat16()).dtype == torch.float32


def test_sequence_kl_sums_the_tokens_of_a_response():
    kl = torch.tensor([[0.5, -0.25, 9.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert sequence_kl(kl, mask).tolist() == [0.25, 6.0]


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(DataError, match="expected equal ones"):
        k1(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(DataError, match="expected equal ones"):
        sequence_kl(torch.zeros(2, 3), torch.ones(2, 1, dtype=torch.bool))
