"""Advantages and losses without a critic, in float64. The numbers are those of the field bugs D01 to D11."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.configs import GRPOConfig
from rlcore.functional.advantages import SCALINGS
from rlcore.grpo.update import REDUCTIONS, Experience, experience_of, group_metrics, policy_losses
from rlcore.rollout import Rollout
from tests.support.grpo import NAN, config, rollout


def advantages(scores: list[float], group_ids: list[int] | None = None, **settings: Any) -> Tensor:
    return experience_of(rollout(scores, group_ids), config(**settings)).advantages


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def losses_with(token_losses: Tensor, found: Rollout, settings: GRPOConfig, rows: list[int] | None = None) -> Tensor:
    """The surrogate loss of some rows of a step where the loss of each token is given, and nothing is clipped."""
    whole = experience_of(found, settings)
    # at ratio 1 the loss of a token is -advantage; one advantage a response, so tokens of a response are equal
    learned = whole.learned_mask.any(dim=1)
    whole = Experience(
        whole.sequences, whole.old_logprobs, whole.ref_logprobs, -token_losses.where(learned, 0.0), whole.learned_mask
    )
    every = list(range(len(token_losses)))
    part = whole.select(every if rows is None else rows)
    return policy_losses(part.old_logprobs, part, whole.counts(every), settings)[0]


def test_a_group_of_equal_scores_gets_zero_and_is_reported():
    # D01: sample deviation of [1, 0, 0, 0] is 0.5, so 0.75 / 0.5001 and -0.25 / 0.5001
    found = rollout([1.0, 1, 1, 1, 1, 0, 0, 0], [0] * 4 + [1] * 4)
    experience = experience_of(found, config())
    assert experience.advantages[:4].tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(experience.advantages[4:], doubles(0.75, -0.25, -0.25, -0.25) / 0.5001)
    metrics = group_metrics(found, experience)
    assert metrics["reward/zero_spread_fraction"] == 0.5
    assert metrics["policy/learned_fraction"] == 1


def test_a_group_of_equal_scores_counts_in_the_denominator():
    # four tokens of loss 2 and four of 0: 8 / 8
    found = rollout([1.0, 1, 1, 1, 1, 0, 0, 0], [0] * 4 + [1] * 4)
    losses = doubles(0, 0, 0, 0, 2, 2, 2, 2)
    torch.testing.assert_close(losses_with(losses, found, config()), torch.tensor(1.0).double())


@pytest.mark.parametrize("estimator", ["group_relative", "leave_one_out"])
def test_groups_that_lie_in_any_order_do_not_mix(estimator):
    # D04: the last group has its own baseline, wherever its rows lie
    mixed = advantages([3.0, 7.0, 1.0, 6.0, 8.0], [0, 5, 0, 5, 5], advantage_estimator=estimator)
    apart = [
        advantages([3.0, 1.0], advantage_estimator=estimator),
        advantages([7.0, 6.0, 8.0], advantage_estimator=estimator),
    ]
    torch.testing.assert_close(mixed[[0, 2]], apart[0])
    torch.testing.assert_close(mixed[[1, 3, 4]], apart[1])


@pytest.mark.parametrize(("name", "expected"), [("token", 1.4), ("sequence", 2.0), ("constant", 0.875)])
def test_a_reduction_is_the_same_for_one_batch_and_for_its_rows(name, expected):
    # D05: rows [1, 1, 1, 1] and [3]: 7 / 5 tokens; (1 + 3) / 2 responses; 7 / (2 responses * 4)
    settings = config(loss_normalization=name, max_new_tokens=4)
    found, losses = rollout([0.0, 1.0], lengths=[4, 1]), doubles(1.0, 3.0)
    torch.testing.assert_close(losses_with(losses, found, settings), doubles(expected)[0])
    parts = sum(losses_with(losses, found, settings, [row]) for row in range(2))
    torch.testing.assert_close(parts, doubles(expected)[0])


@pytest.mark.parametrize(("name", "expected"), [("token", 1.0), ("sequence", 1.0), ("constant", 2 / 6)])
def test_truncated_responses_are_in_neither_numerator_nor_denominator(name, expected):
    # D06: 2 tokens of loss 1 are left: 2 / 2, 1 response / 1, 2 / (1 * 6); with the 6 cut ones below it was 2 / 8
    settings = config(loss_normalization=name, mask_truncated=True, max_new_tokens=6)
    found = rollout([0.0, 1.0], lengths=[2, 6], truncated=[False, True])
    torch.testing.assert_close(losses_with(doubles(1.0, 5.0), found, settings), doubles(expected)[0])
    kept = losses_with(doubles(1.0, 5.0), found, config(loss_normalization=name, max_new_tokens=6))
    # all 8 tokens: (2 + 30) / 8, (1 + 5) / 2, 32 / 12
    expected_kept = {"token": 4.0, "sequence": 3.0, "constant": 32 / 12}[name]
    torch.testing.assert_close(kept, doubles(expected_kept)[0])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_but_truncated_responses_gives_no_loss_and_no_gradient(name):
    settings = config(loss_normalization=name, mask_truncated=True, kl_penalty_coef=0.5)
    found = rollout([0.0, 1.0], lengths=[2, 6], truncated=[True, True], ref_logprobs=torch.full((2, 6), -9.0).double())
    experience = experience_of(found, settings)
    logprobs = found.old_logprobs.clone().requires_grad_()
    loss = sum(policy_losses(logprobs, experience, experience.counts([0, 1]), settings))
    loss.backward()
    assert loss.item() == 0
    assert logprobs.grad.count_nonzero() == 0


def test_a_missing_score_is_left_out_and_poisons_nobody():
    # D07: mean 0.5 and sample deviation 0.5 of the three that are there
    found = rollout([1.0, NAN, 0.0, 0.5], lengths=[1, 3, 1, 1])
    experience = experience_of(found, config())
    torch.testing.assert_close(experience.advantages, doubles(0.5, 0, -0.5, 0) / 0.5001)
    assert experience.counts([0, 1, 2, 3]) == (6, 3, 3)
    metrics = group_metrics(found, experience)
    assert metrics["reward/missing_fraction"] == 0.25
    assert metrics["policy/learned_fraction"] == 0.75
    assert metrics["reward/unscored_group_count"] == 0


@pytest.mark.parametrize("estimator", ["group_relative", "leave_one_out"])
def test_a_group_without_scores_teaches_nothing(estimator):
    found = rollout([NAN, NAN, 1.0, 0.0], [0, 0, 1, 1])
    experience = experience_of(found, config(advantage_estimator=estimator))
    assert experience.advantages[:2].tolist() == [0, 0]
    assert experience.learned_mask.any(dim=1).tolist() == [False, False, True, True]
    metrics = group_metrics(found, experience)
    assert metrics["reward/unscored_group_count"] == 1
    assert metrics["reward/zero_spread_fraction"] == 0.5


@given(
    st.lists(st.integers(-1000, 1000), min_size=2, max_size=8, unique=True),
    st.sampled_from(list(SCALINGS)),
)
def test_the_sign_of_an_advantage_is_that_of_the_score_less_the_mean(scores, scaling):
    # D10: dividing by a mean of -2 would turn the signs of [-1, -3]
    found = advantages([float(score) for score in scores], advantage_scaling=scaling)
    mean = sum(scores) / len(scores)
    assert [math.copysign(1, a) for a, s in zip(found.tolist(), scores, strict=True) if abs(s - mean) > 1e-9] == [
        math.copysign(1, s - mean) for s in scores if abs(s - mean) > 1e-9
    ]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # D11: 1 - 1/5 and 0 - 2/5; each score less the mean of the three others
        ([1.0, 1, 0, 0, 0, 0], [0.8, 0.8, -0.4, -0.4, -0.4, -0.4]),
        ([0.2, 0.4, 0.0, 1.0], [-0.8 / 3, 0.0, -1.6 / 3, 0.8]),
    ],
)
def test_the_baseline_of_leave_one_out_is_the_mean_of_the_others(scores, expected):
    found = advantages(scores, advantage_estimator="leave_one_out", kl_penalty_coef=0.0)
    torch.testing.assert_close(found, doubles(*expected), atol=1e-15, rtol=0)
    # two prompts, their responses in turn: the same numbers in each, however the rows are folded
    twice = [score for score in scores for _ in range(2)]
    found = advantages(twice, [0, 1] * len(scores), advantage_estimator="leave_one_out", kl_penalty_coef=0.0)
    torch.testing.assert_close(found[0::2], doubles(*expected), atol=1e-15, rtol=0)
    torch.testing.assert_close(found[1::2], doubles(*expected), atol=1e-15, rtol=0)


def test_the_kl_enters_the_score_before_the_baseline_of_leave_one_out_and_the_loss_of_group_relative():
    # KL of the responses: 2 tokens of -1 - -3 = 2 each, 4 nats; 1 token, 1 nat. Scores less 0.1 KL: 0.6 and 0.9
    ref = torch.tensor([[-3.0, -3.0], [-2.0, 0.0]]).double()
    found = rollout([1.0, 1.0], lengths=[2, 1], ref_logprobs=ref)
    rloo = config(advantage_estimator="leave_one_out", kl_penalty_coef=0.1)
    experience = experience_of(found, rloo)
    torch.testing.assert_close(experience.advantages, doubles(-0.3, 0.3))
    assert policy_losses(found.old_logprobs, experience, experience.counts([0, 1]), rloo)[1] == 0
    grpo = config(kl_penalty_coef=0.1)
    experience = experience_of(found, grpo)
    assert experience.advantages.tolist() == [0, 0]
    # k3 of a policy half a nat above the sampling one: exp(-2.5) + 1.5 twice, exp(-1.5) + 0.5, over 3 tokens
    expected = 0.1 * (2 * (math.exp(-2.5) + 1.5) + math.exp(-1.5) + 0.5) / 3
    found_loss = policy_losses(found.old_logprobs + 0.5, experience, experience.counts([0, 1]), grpo)[1]
    torch.testing.assert_close(found_loss, doubles(expected)[0])


def test_the_surrogate_is_clipped():
    # advantages of [1, 0] without scaling: 0.5 and -0.5. Ratios 1.5 and 0.5 are clipped to 1.2 and 0.8
    settings = config(advantage_scaling="none", kl_penalty_coef=0.0)
    found = rollout([1.0, 0.0])
    experience = experience_of(found, settings)
    logprobs = found.old_logprobs + doubles(math.log(1.5), math.log(0.5))[:, None]
    loss = policy_losses(logprobs, experience, experience.counts([0, 1]), settings)[0]
    torch.testing.assert_close(loss, doubles((-0.6 + 0.4) / 2)[0])


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("estimator", ["group_relative", "leave_one_out"])
def test_the_gradient_is_that_of_finite_differences(name, estimator):
    noise = torch.Generator().manual_seed(3)
    shape = (4, 5)
    old, ref, new = (torch.randn(shape, generator=noise, dtype=torch.float64) / 20 - 1 for _ in range(3))
    settings = config(loss_normalization=name, advantage_estimator=estimator, kl_penalty_coef=0.3, mask_truncated=True)
    found = rollout(
        [1.0, 0.2, 0.5, NAN],
        lengths=[5, 2, 4, 3],
        truncated=[False, False, True, False],
        sampled=[[True, True, False, False, True], [True] * 2, [True] * 4, [True] * 3],
        old_logprobs=old,
        ref_logprobs=ref,
    )
    experience = experience_of(found, settings)
    counts = experience.counts([0, 1, 2, 3])
    assert torch.autograd.gradcheck(
        lambda logprobs: sum(policy_losses(logprobs, experience, counts, settings)), new.requires_grad_()
    )


def test_what_a_tool_wrote_is_in_no_loss_and_in_no_count():
    # row 0: 2 sampled, 2 of a tool, 1 sampled; any log-probability of the tool's tokens gives the same loss
    sampled = [[True, True, False, False, True], [True] * 3]
    found = rollout([1.0, 0.0], lengths=[5, 3], sampled=sampled)
    experience = experience_of(found, config())
    assert experience.counts([0, 1]) == (6, 6, 2)
    assert group_metrics(found, experience)["response/turns_mean"] == 1.5
    results = []
    for value in (-1.0, -50.0, float("nan")):
        logprobs = found.old_logprobs.clone()
        logprobs[0, 2:4] = value
        logprobs.requires_grad_()
        loss = sum(policy_losses(logprobs, experience, experience.counts([0, 1]), config()))
        loss.backward()
        assert logprobs.grad[0, 2:4].tolist() == [0, 0]
        results.append((loss.item(), logprobs.grad.tolist()))
    assert results[0] == results[1] == results[2]
