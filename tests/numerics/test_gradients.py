"""Gradients of all losses in float64: finite differences, and micro-batches that equal one batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlcore.functional import kl, logprobs, losses, masking
from rlcore.functional.precision import bounded_exp, bounded_expm1
from tests.support.losses import (
    CLIP_RATIO,
    MASK,
    PAIR_LOSSES,
    SEQUENCE_LOSSES,
    TOKEN_LOSSES,
    VALUE_CLIP,
    B,
    N,
    T,
    draw,
    signed,
    value_and_gradient,
)


@pytest.mark.parametrize("name", TOKEN_LOSSES | SEQUENCE_LOSSES)
def test_token_losses_against_finite_differences(name):
    size, loss = (TOKEN_LOSSES | SEQUENCE_LOSSES)[name]
    first, *rest = draw(size, B, T)  # only the first carries gradient: the policy's log-probabilities, or the values
    assert torch.autograd.gradcheck(lambda x: loss([x, *rest], MASK, None), first.requires_grad_())


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_pair_losses_against_finite_differences(name):
    size, loss = PAIR_LOSSES[name]
    x = [leaf.requires_grad_() for leaf in draw(size, N)]
    assert torch.autograd.gradcheck(lambda *x: loss(list(x), None), x)


def test_the_inputs_reach_both_sides_of_every_kink():
    x = draw(3, B, T)
    clipped = losses.clip_fraction(x[0], x[1], signed(x[2]), MASK, clip_ratio=CLIP_RATIO)
    value_clipped = losses.value_clip_fraction(*x, MASK, value_clip=VALUE_CLIP)
    gains = signed(x[2])[MASK]
    # a response with probability above and below 1/2 takes different forms of ln(1 - p)
    likely = draw(3, N)[0] > -0.6931
    for share in (clipped, value_clipped, (gains > 0).double().mean(), likely.double().mean()):
        assert 0.05 < share < 0.95


LOGITS, IDS = draw(1, B, T, 7)[0], torch.arange(B * T).view(B, T) % 7


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "token_logprobs": lambda x: logprobs.token_logprobs(x, IDS, 0.7),
    "entropy": lambda x: logprobs.entropy(x, 0.7),
    "sequence_logprobs": lambda x: logprobs.sequence_logprobs(x, torch.where(MASK, IDS, logprobs.IGNORED_LABEL))[0],
    "whiten": lambda x: masking.whiten(x[..., 0], MASK),
    "scale_to_unit_std": lambda x: masking.scale_to_unit_std(x[..., 0], MASK),
    "masked_var": lambda x: masking.masked_var(x[..., 0], MASK),
    "pool_mean": lambda x: masking.pool_mean(x[:3], MASK[:3]),
    "k1": lambda x: kl.k1(x, LOGITS.flip(0)),
    "k2": lambda x: kl.k2(x, LOGITS.flip(0)),
    "k3": lambda x: kl.k3(x, LOGITS.flip(0)),
    # up to 90: both sides of the 40 above which they go on as tangents
    "bounded_exp": lambda x: bounded_exp(-30 * x) / 1e17,
    "bounded_expm1": lambda x: bounded_expm1(-30 * x) / 1e17,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_finite_differences(name):
    assert torch.autograd.gradcheck(FUNCTIONS[name], LOGITS.clone().requires_grad_())


@pytest.mark.parametrize("max_logit_bytes", [10**9, 1], ids=["whole", "row by row"])
def test_response_logprobs_against_finite_differences(max_logit_bytes):
    (hidden,), (weight,) = draw(1, 2, 5, 3), draw(1, 4, 3)

    def measure(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs.response_logprobs_and_entropy(
            hidden, lambda x: x @ weight.T, IDS[:2, :3] % 4, temperature=0.7, max_logit_bytes=max_logit_bytes
        )

    assert torch.autograd.gradcheck(measure, (hidden.requires_grad_(), weight.requires_grad_()))


def test_the_whole_ppo_loss_against_finite_differences():
    (logits,), (values,), x = draw(1, B, T, 7), draw(1, B, T, seed=1), draw(3, B, T, seed=2)

    def total(logits: Tensor, values: Tensor) -> Tensor:
        new = logprobs.token_logprobs(logits, IDS, 0.7)
        return losses.ppo_total_loss(
            losses.ppo_policy_loss(new, x[0], signed(x[1]), MASK, clip_ratio=CLIP_RATIO),
            losses.clipped_value_loss(values, x[1], x[2], MASK, value_clip=VALUE_CLIP),
            masking.masked_mean(logprobs.entropy(logits, 0.7), MASK),
            value_coef=0.5,
            entropy_coef=0.3,
        )

    assert torch.autograd.gradcheck(total, (logits.requires_grad_(), values.requires_grad_()))


def test_an_entropy_bonus_pulls_the_logits_together():
    # dH/dlogit_i = -p_i (ln p_i + H); for p = (0.8, 0.2), H = 0.500402: -0.8 (-0.223144 + 0.500402) = -0.221807
    logits = torch.tensor([[[0.8, 0.2]]], dtype=torch.float64).log().requires_grad_()
    entropy_mean = masking.masked_mean(logprobs.entropy(logits), torch.tensor([[True]]))
    zero = torch.zeros((), dtype=torch.float64)
    losses.ppo_total_loss(zero, zero, entropy_mean, value_coef=0.5, entropy_coef=1.0).backward()
    expected = torch.tensor([[[0.221807, -0.221807]]], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-5, atol=1e-6)  # six digits were worked out


SPLITS = ([1, 1, 1, 1], [3, 1], [1, 2, 1])


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", TOKEN_LOSSES | SEQUENCE_LOSSES)
def test_micro_batches_of_tokens_equal_one_batch(name, split):
    size, loss = (TOKEN_LOSSES | SEQUENCE_LOSSES)[name]
    x = draw(size, B, T)
    count = MASK.sum().item() if name in TOKEN_LOSSES else B
    value, gradient = value_and_gradient(lambda x: loss(x, MASK, None), x)
    parts = [
        value_and_gradient(lambda x, mask=mask: loss(x, mask, count), list(rows))
        for *rows, mask in zip(*(tensor.split(split) for tensor in [*x, MASK]), strict=True)
    ]
    assert_exact(sum(part[0] for part in parts), value)
    assert_exact(torch.cat([part[1] for part in parts]), gradient)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_micro_batches_of_pairs_equal_one_batch(name, split):
    size, loss = PAIR_LOSSES[name]
    x = draw(size, 4)
    value, gradient = value_and_gradient(lambda x: loss(x, None), x)
    parts = [
        value_and_gradient(lambda x: loss(x, 4), list(rows))
        for rows in zip(*(tensor.split(split) for tensor in x), strict=True)
    ]
    assert_exact(sum(part[0] for part in parts), value)
    assert_exact(torch.cat([part[1] for part in parts]), gradient)


def test_micro_batches_of_a_whole_ppo_step_give_the_parameters_one_gradient():
    (hidden,), weights, (old, gains, targets, _) = draw(1, B, 2 + T, 3), draw(2, 7, 3), draw(4, B, T)

    def parameter_gradients(rows: slice) -> list[Tensor]:
        head, value_head = weights[0].clone().requires_grad_(), weights[1][0].clone().requires_grad_()
        states, mask = hidden[rows], MASK[rows]
        new, entropies = logprobs.response_logprobs_and_entropy(
            states, lambda x: x @ head.T, IDS[rows], temperature=0.7
        )
        count = MASK.sum()
        total = losses.ppo_total_loss(
            losses.ppo_policy_loss(new, old[rows], gains[rows], mask, clip_ratio=0.2, token_count=count),
            losses.clipped_value_loss(
                states[:, 1:-1] @ value_head, old[rows], targets[rows], mask, value_clip=0.4, token_count=count
            ),
            masking.masked_mean(entropies, mask, count),
            value_coef=0.5,
            entropy_coef=0.01,
        )
        return list(torch.autograd.grad(total, (head, value_head)))

    whole = parameter_gradients(slice(None))
    parts = [parameter_gradients(rows) for rows in (slice(0, 1), slice(1, 3), slice(3, 4))]
    for index, gradient in enumerate(whole):
        assert gradient.abs().max() > 1e-3
        assert_exact(sum(part[index] for part in parts), gradient)


def assert_exact(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
