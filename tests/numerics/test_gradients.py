"""Laws of all losses in float64: finite differences, micro-batches that equal one batch, padding that has no effect."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.functional import advantages, kl, logprobs, losses, masking
from rlcore.functional.precision import bounded_exp, bounded_expm1

B, T = 4, 5
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


def draw(count: int, *shape: int) -> list[Tensor]:
    """Numbers between -3 and -0.01 in float64: right for log-probabilities, and for everything else too."""
    generator = torch.Generator().manual_seed(0)
    return list(-0.01 - 2.99 * torch.rand(count, *shape, dtype=torch.float64, generator=generator))


# Losses of tokens: name -> how many tensors [B, T] it takes, and the loss of these, a mask and a count.
TokenLoss = Callable[[list[Tensor], Tensor, float | None], Tensor]
TOKEN_LOSSES: dict[str, tuple[int, TokenLoss]] = {
    "token_mean": (1, lambda x, mask, count: losses.token_mean(*x, mask, count)),
    "ppo_policy": (3, lambda x, mask, count: losses.ppo_policy_loss(*x, mask, clip_ratio=0.2, token_count=count)),
    "importance_sampling": (3, lambda x, mask, count: losses.importance_sampling_loss(*x, mask, token_count=count)),
    "clipped_value": (3, lambda x, mask, count: losses.clipped_value_loss(*x, mask, value_clip=0.4, token_count=count)),
    "value": (3, lambda x, mask, count: losses.clipped_value_loss(*x, mask, value_clip=None, token_count=count)),
}
SEQUENCE_LOSSES: dict[str, tuple[int, TokenLoss]] = {
    "sequence_mean": (1, lambda x, mask, count: losses.sequence_mean(*x, mask, count)),
    "constant_length": (
        1,
        lambda x, mask, count: losses.constant_length_mean(*x, mask, max_length=T, sequence_count=count),
    ),
}
# Losses of pairs: name -> how many tensors [N] it takes, and the loss of these and a count.
PAIR_LOSSES: dict[str, tuple[int, Callable[[list[Tensor], float | None], Tensor]]] = {
    "dpo": (4, lambda x, count: losses.dpo_loss(*x, beta=0.5, label_smoothing=0.2, pair_count=count)),
    "reference_free_dpo": (2, lambda x, count: losses.reference_free_dpo_loss(*x, beta=0.5, pair_count=count)),
    "orpo": (3, lambda x, count: losses.orpo_loss(*x, odds_coef=0.3, pair_count=count)),
    "bradley_terry": (2, lambda x, count: losses.bradley_terry_loss(*x, pair_count=count)),
    "bradley_terry_margin": (3, lambda x, count: losses.bradley_terry_loss(*x, pair_count=count)),
    "centering": (2, lambda x, count: losses.centering_penalty(*x, coef=0.1, pair_count=count)),
}


def value_and_gradient(loss: Callable[[list[Tensor]], Tensor], x: list[Tensor]) -> tuple[Tensor, Tensor]:
    leaf = x[0].clone().requires_grad_()
    value = loss([leaf, *x[1:]])
    return value.detach(), torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("name", TOKEN_LOSSES | SEQUENCE_LOSSES)
def test_token_losses_against_finite_differences(name):
    size, loss = (TOKEN_LOSSES | SEQUENCE_LOSSES)[name]
    first, *rest = draw(size, B, T)  # only the first carries gradient: the policy's log-probabilities, or the values
    assert torch.autograd.gradcheck(lambda x: loss([x, *rest], MASK, None), first.requires_grad_())


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_pair_losses_against_finite_differences(name):
    size, loss = PAIR_LOSSES[name]
    x = [leaf.requires_grad_() for leaf in draw(size, 6)]
    assert torch.autograd.gradcheck(lambda *x: loss(list(x), None), x)


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
    "bounded_exp": bounded_exp,
    "bounded_expm1": bounded_expm1,
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


JUNK = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -7.0])
MASKS = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B).map(torch.tensor)
LENGTHS = st.lists(st.integers(1, T), min_size=B, max_size=B).map(
    lambda lengths: torch.arange(T) < torch.tensor(lengths).unsqueeze(1)
)

# Masked functions that are not losses: name -> how many tensors [B, T] it takes, and what it makes of these and a mask.
MEASURES: dict[str, tuple[int, Callable[[list[Tensor], Tensor], Tensor]]] = {
    "masked_sum": (1, lambda x, mask: masking.masked_sum(*x, mask)),
    "masked_var": (1, lambda x, mask: masking.masked_var(*x, mask)),
    "whiten": (1, lambda x, mask: masking.whiten(*x, mask)),
    "scale_to_unit_std": (1, lambda x, mask: masking.scale_to_unit_std(*x, mask)),
    "sequence_kl": (1, lambda x, mask: kl.sequence_kl(*x, mask)),
    "probability_ratio": (2, lambda x, mask: losses.probability_ratio(*x, mask)),
    "clip_fraction": (3, lambda x, mask: losses.clip_fraction(*x, mask, clip_ratio=0.2)),
    "value_clip_fraction": (3, lambda x, mask: losses.value_clip_fraction(*x, mask, value_clip=0.2)),
    "explained_variance": (2, lambda x, mask: losses.explained_variance(*x, mask)),
    "token_rewards": (1, lambda x, mask: advantages.token_rewards(*x, torch.arange(B).double(), mask, kl_coef=0.1)),
    "gae": (2, lambda x, mask: torch.stack(advantages.gae(*x, mask, torch.ones(B).double(), gamma=0.9, lam=0.8))),
}


def with_padding(x: list[Tensor], mask: Tensor, junk: list[float]) -> list[Tensor]:
    return [torch.where(mask, tensor, content) for tensor, content in zip(x, junk, strict=True)]


@pytest.mark.parametrize("name", TOKEN_LOSSES | SEQUENCE_LOSSES)
@settings(max_examples=25, deadline=None)
@given(mask=MASKS, junk=st.lists(JUNK, min_size=3, max_size=3))
def test_padding_reaches_no_loss_and_no_gradient(name, mask, junk):
    size, loss = (TOKEN_LOSSES | SEQUENCE_LOSSES)[name]
    x = draw(size, B, T)
    value, gradient = value_and_gradient(lambda x: loss(x, mask, None), x)
    dirty_value, dirty_gradient = value_and_gradient(lambda x: loss(x, mask, None), with_padding(x, mask, junk[:size]))
    assert torch.equal(dirty_value, value)
    assert torch.equal(dirty_gradient, gradient)
    assert gradient[~mask].eq(0).all()


@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=25, deadline=None)
@given(mask=LENGTHS, junk=st.lists(JUNK, min_size=3, max_size=3))
def test_padding_reaches_no_measure(name, mask, junk):
    size, measure = MEASURES[name]
    x = draw(size, B, T)
    assert torch.equal(measure(with_padding(x, mask, junk[:size]), mask), measure(x, mask))


@settings(max_examples=25, deadline=None)
@given(mask=LENGTHS, junk=JUNK)
def test_padding_reaches_no_pooled_state(mask, junk):
    (hidden,) = draw(1, B, T)
    for pool in masking.POOLINGS.values():
        clean, dirty = (
            value_and_gradient(lambda x: pool(x[0].unsqueeze(-1), mask).sum(), [states])  # noqa: B023
            for states in (hidden, torch.where(mask, hidden, junk))
        )
        assert torch.equal(dirty[0], clean[0])
        assert torch.equal(dirty[1], clean[1])
