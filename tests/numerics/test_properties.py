"""Laws of masks and of what is measured under them, on inputs that hypothesis looks for."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.functional import advantages, kl, losses, masking
from tests.support.losses import PAIR_LOSSES, SEQUENCE_LOSSES, TOKEN_LOSSES, B, T, draw, value_and_gradient

law = settings(max_examples=25, deadline=None, derandomize=True)

JUNK = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -7.0])
JUNKS = st.lists(JUNK, min_size=3, max_size=3)
SEEDS = st.integers(0, 2**31)
ROWS = st.permutations(range(B))
MASKS = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B).map(torch.tensor)
LENGTHS = st.lists(st.integers(1, T), min_size=B, max_size=B).map(torch.tensor)

# Functions of tokens that are no losses: name -> how many tensors [B, T] it takes, and what it makes of these and a
# mask: one number for each token, one for each response, or one for all.
MEASURES: dict[str, tuple[int, Callable[[list[Tensor], Tensor], Tensor]]] = {
    "whiten": (1, lambda x, mask: masking.whiten(*x, mask)),
    "scale_to_unit_std": (1, lambda x, mask: masking.scale_to_unit_std(*x, mask)),
    "probability_ratio": (2, lambda x, mask: losses.probability_ratio(*x, mask)),
    "token_rewards": (1, lambda x, mask: advantages.token_rewards(*x, first_column(x, mask), mask, kl_coef=0.1)),
    "advantages": (2, lambda x, mask: gae(x, mask)[0]),
    "returns": (2, lambda x, mask: gae(x, mask)[1]),
    "ppo_token_losses": (3, lambda x, mask: losses.ppo_token_losses(*x, mask, clip_ratio=0.2)),
    "importance_sampling": (3, lambda x, mask: losses.importance_sampling_token_losses(*x, mask)),
    "sequence_kl": (1, lambda x, mask: kl.sequence_kl(*x, mask)),
    "masked_sum": (1, lambda x, mask: masking.masked_sum(*x, mask)),
    "masked_mean": (1, lambda x, mask: masking.masked_mean(*x, mask)),
    "masked_var": (1, lambda x, mask: masking.masked_var(*x, mask)),
    "clip_fraction": (3, lambda x, mask: losses.clip_fraction(*x, mask, clip_ratio=0.2)),
    "value_clip_fraction": (3, lambda x, mask: losses.value_clip_fraction(*x, mask, value_clip=0.2)),
    "explained_variance": (2, lambda x, mask: losses.explained_variance(*x, mask)),
}
ALL_TOKEN_LOSSES = TOKEN_LOSSES | SEQUENCE_LOSSES


def first_column(x: list[Tensor], mask: Tensor) -> Tensor:
    """A number for each row that padding cannot reach: the first token is real."""
    return x[0][:, 0]


def gae(x: list[Tensor], mask: Tensor, gamma: float = 0.9, lam: float = 0.8) -> tuple[Tensor, Tensor]:
    return advantages.gae(*x, mask, first_column(x, mask), gamma=gamma, lam=lam)


def mask_of(lengths: Tensor) -> Tensor:
    return torch.arange(T) < lengths.unsqueeze(1)


def with_padding(x: list[Tensor], mask: Tensor, junk: list[float]) -> list[Tensor]:
    return [torch.where(mask, tensor, content) for tensor, content in zip(x, junk, strict=True)]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Equal up to the rounding of float64 sums, unless a test knows better."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# padding


@pytest.mark.parametrize("name", ALL_TOKEN_LOSSES)
@law
@given(mask=MASKS, junk=JUNKS, seed=SEEDS)
def test_padding_reaches_no_loss_and_no_gradient(name, mask, junk, seed):
    size, loss = ALL_TOKEN_LOSSES[name]
    x = draw(size, B, T, seed=seed)
    value, gradient = value_and_gradient(lambda x: loss(x, mask, None), x)
    dirty_value, dirty_gradient = value_and_gradient(lambda x: loss(x, mask, None), with_padding(x, mask, junk[:size]))
    assert torch.equal(dirty_value, value)
    assert torch.equal(dirty_gradient, gradient)
    assert gradient[~mask].eq(0).all()


@pytest.mark.parametrize("name", MEASURES)
@law
@given(lengths=LENGTHS, junk=JUNKS, seed=SEEDS)
def test_padding_reaches_no_measure(name, lengths, junk, seed):
    size, measure = MEASURES[name]
    x, mask = draw(size, B, T, seed=seed), mask_of(lengths)
    assert torch.equal(measure(with_padding(x, mask, junk[:size]), mask), measure(x, mask))


@pytest.mark.parametrize("name", MEASURES)
@law
@given(lengths=LENGTHS, junk=JUNK, columns=st.integers(1, 4), seed=SEEDS)
def test_more_padding_changes_nothing(name, lengths, junk, columns, seed):
    size, measure = MEASURES[name]
    x, mask = draw(size, B, T, seed=seed), mask_of(lengths)
    wider = [torch.cat([tensor, torch.full((B, columns), junk, dtype=torch.float64)], dim=1) for tensor in x]
    wider_mask = torch.cat([mask, torch.zeros(B, columns, dtype=torch.bool)], dim=1)
    found, expected = measure(wider, wider_mask), measure(x, mask)
    close(found[:, :T] if found.shape == wider_mask.shape else found, expected)


@law
@given(lengths=LENGTHS, junk=JUNK, seed=SEEDS)
def test_padding_on_either_side_reaches_no_pooled_state_and_no_position(lengths, junk, seed):
    (hidden,) = draw(1, B, T, 3, seed=seed)
    right = mask_of(lengths)
    rows = torch.arange(B).unsqueeze(1)
    to_the_left = (torch.arange(T) - (T - lengths).unsqueeze(1)) % T  # where a right-padded token comes from
    left, shifted = right[rows, to_the_left], hidden[rows, to_the_left]
    for pool in masking.POOLINGS.values():
        alone = torch.cat(
            [
                pool(row[None, :length], torch.ones(1, length))
                for row, length in zip(hidden, lengths.tolist(), strict=True)
            ]
        )
        for states, mask in ((hidden, right), (shifted, left)):
            dirty = torch.where(mask.unsqueeze(-1), states, junk)
            close(pool(dirty, mask), alone)
            _, gradient = value_and_gradient(lambda x: pool(x[0], mask).sum(), [dirty])  # noqa: B023
            assert gradient[~mask].eq(0).all()
    positions = masking.position_ids_from(left)
    assert all(torch.equal(positions[row][left[row]], torch.arange(int(lengths[row]))) for row in range(B))
    assert torch.equal(masking.last_index(left), torch.full((B,), T - 1))
    assert torch.equal(masking.last_index(right), lengths - 1)


# rows


@pytest.mark.parametrize("name", ALL_TOKEN_LOSSES)
@law
@given(mask=MASKS, rows=ROWS, seed=SEEDS)
def test_the_order_of_responses_changes_no_loss(name, mask, rows, seed):
    size, loss = ALL_TOKEN_LOSSES[name]
    x = draw(size, B, T, seed=seed)
    value, gradient = value_and_gradient(lambda x: loss(x, mask, None), x)
    moved_value, moved = value_and_gradient(lambda x: loss(x, mask[rows], None), [tensor[rows] for tensor in x])
    close(moved_value, value)
    close(moved, gradient[rows])


@pytest.mark.parametrize("name", PAIR_LOSSES)
@law
@given(rows=ROWS, seed=SEEDS)
def test_the_order_of_pairs_changes_no_loss(name, rows, seed):
    size, loss = PAIR_LOSSES[name]
    x = draw(size, B, seed=seed)
    close(loss([tensor[rows] for tensor in x], None), loss(x, None))


@pytest.mark.parametrize("name", MEASURES)
@law
@given(lengths=LENGTHS, rows=ROWS, seed=SEEDS)
def test_the_order_of_responses_moves_with_what_is_measured(name, lengths, rows, seed):
    size, measure = MEASURES[name]
    x, mask = draw(size, B, T, seed=seed), mask_of(lengths)
    expected = measure(x, mask)
    close(measure([tensor[rows] for tensor in x], mask[rows]), expected[rows] if expected.dim() else expected)


@law
@given(mask=MASKS, cut=st.integers(0, B), seed=SEEDS)
def test_means_of_parts_add_up(mask, cut, seed):
    (x,) = draw(1, B, T, seed=seed)
    count = mask.sum()
    parts = [masking.masked_mean(x[rows], mask[rows], count) for rows in (slice(0, cut), slice(cut, B))]
    close(sum(parts), masking.masked_mean(x, mask))
    close(masking.masked_sum(x, mask) + masking.masked_sum(x, ~mask), x.sum())


# statistics


@law
@given(lengths=LENGTHS, scale=st.sampled_from([-3.0, 0.5, 100.0]), shift=st.sampled_from([-1e4, 0.0, 7.0]), seed=SEEDS)
def test_whitening_forgets_shift_and_scale(lengths, scale, shift, seed):
    (x,), mask = draw(1, B, T, seed=seed), mask_of(lengths)
    white = masking.whiten(x, mask, epsilon=0)
    # beside a shift of 10^4, float64 keeps 12 digits of what it is added to
    close(masking.whiten(scale * x + shift, mask, epsilon=0), math.copysign(1, scale) * white, tolerance=1e-9)
    close(masking.masked_mean(white, mask), torch.zeros(()).double())
    close(masking.masked_var(white, mask), torch.ones(()).double())
    scaled = masking.scale_to_unit_std(x, mask, epsilon=0)
    close(masking.masked_mean(scaled, mask), masking.masked_mean(x, mask))
    close(masking.masked_var(scaled, mask), torch.ones(()).double())


@law
@given(lengths=LENGTHS, number=st.floats(-1e6, 1e6))
def test_equal_numbers_have_no_spread(lengths, number):
    x, mask = torch.full((B, T), number).double(), mask_of(lengths)
    assert masking.masked_var(x, mask) == 0
    assert masking.whiten(x, mask).eq(0).all()
    close(masking.scale_to_unit_std(x, mask), x.where(mask, 0.0))


# responses


@law
@given(
    ids=st.lists(st.lists(st.integers(0, 5), min_size=T, max_size=T), min_size=1, max_size=B),
    eos_ids=st.lists(st.integers(0, 5), max_size=2, unique=True),
)
def test_a_response_ends_with_its_first_end_token(ids, eos_ids):
    mask = masking.response_mask_from(torch.tensor(ids), eos_ids)
    for row, found in zip(ids, mask, strict=True):
        length = next((t + 1 for t, token in enumerate(row) if token in eos_ids), T)
        assert found.tolist() == [t < length for t in range(T)]
    # what follows the end, the end token as padding among it, is of no account
    for junk in range(6):
        assert torch.equal(masking.response_mask_from(torch.tensor(ids).where(mask, junk), eos_ids), mask)


@law
@given(lengths=LENGTHS, seed=SEEDS)
def test_token_rewards_add_up_to_the_score_less_the_penalty(lengths, seed):
    (x,), (scores,), mask = draw(1, B, T, seed=seed), draw(1, B, seed=seed + 1), mask_of(lengths)
    rewards = advantages.token_rewards(x, scores, mask, kl_coef=0.3)
    close(rewards.sum(dim=1), scores - 0.3 * kl.sequence_kl(x, mask))
    assert rewards[~mask].eq(0).all()


@law
@given(lengths=LENGTHS, gamma=st.floats(0, 1), lam=st.floats(0, 1), seed=SEEDS)
def test_advantages_of_a_batch_are_those_of_each_response_alone(lengths, gamma, lam, seed):
    x, mask = draw(2, B, T, seed=seed), mask_of(lengths)
    found = torch.stack(gae(x, mask, gamma, lam))
    for row, length in enumerate(lengths.tolist()):
        alone = [tensor[row : row + 1, :length] for tensor in x]
        expected = torch.stack(gae(alone, torch.ones(1, length, dtype=torch.bool), gamma, lam))
        close(found[:, row : row + 1, :length], expected)


@law
@given(lengths=LENGTHS, gamma=st.floats(0, 1), seed=SEEDS)
def test_at_lambda_one_returns_are_discounted_sums_and_at_zero_advantages_are_single_steps(lengths, gamma, seed):
    (rewards, values), mask = draw(2, B, T, seed=seed), mask_of(lengths)
    bootstrap = rewards[:, 0]
    _, returns = gae([rewards, values], mask, gamma, 1.0)
    steps, _ = gae([rewards, values], mask, gamma, 0.0)
    for row, length in enumerate(lengths.tolist()):
        discounts = gamma ** torch.arange(length + 1).double()
        paid = torch.cat([rewards[row, :length], bootstrap[row : row + 1]])
        close(returns[row, 0], (discounts * paid).sum())
        following = torch.cat([values[row, 1:length], bootstrap[row : row + 1]])
        close(steps[row, :length], rewards[row, :length] + gamma * following - values[row, :length])


# groups and estimators

GROUPED = st.lists(st.integers(0, 2), min_size=4, max_size=9).map(torch.tensor)


@law
@given(group_ids=GROUPED, shift=st.sampled_from([-5.0, 0.0, 3.0]), seed=SEEDS, data=st.data())
def test_group_advantages_know_their_group_alone(group_ids, shift, seed, data):
    (scores,) = draw(1, len(group_ids), seed=seed)
    order = data.draw(st.permutations(range(len(group_ids))))
    for estimate in (advantages.group_relative_advantages, advantages.leave_one_out_advantages):
        found = estimate(scores, group_ids)
        close(estimate(scores[order], group_ids[order]), found[order])
        close(estimate(scores + shift * group_ids, group_ids), found, tolerance=1e-9)
        assert all(abs(found[group_ids == group].sum()) < 1e-9 for group in range(3))


@law
@given(seed=SEEDS)
def test_estimators_of_kl(seed):
    policy, reference = draw(2, B, T, seed=seed)
    close(kl.k1(policy, reference), -kl.k1(reference, policy))
    close(kl.k2(policy, reference), kl.k2(reference, policy))
    assert kl.k3(policy, reference).ge(0).all()
    assert kl.k3(policy, policy).eq(0).all()
    # k3 = exp(-k1) - 1 + k1
    close(kl.k3(policy, reference), (-kl.k1(policy, reference)).exp() - 1 + kl.k1(policy, reference))
