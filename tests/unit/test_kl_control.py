"""The KL coefficient: it follows the relative error, stays above 0 and goes on where a checkpoint left it."""

import math

import pytest
import torch

from rlcore.errors import CheckpointError, ConfigError
from rlcore.functional.kl import sequence_kl
from rlcore.kl_control import AdaptiveKLController


def test_updates_follow_the_relative_error_clipped_to_a_fifth():
    controller = AdaptiveKLController(0.2, target=6, horizon=10_000)
    # 9 / 6 - 1 = 0.5 -> +0.2; 3 / 6 - 1 = -0.5 -> -0.2; equal to the target -> unchanged
    assert controller.update(9, 256) == pytest.approx(0.2 * (1 + 0.2 * 256 / 10_000))
    assert controller.update(3, 256) == pytest.approx(0.199994757)
    assert controller.update(6, 256) == pytest.approx(0.199994757)


def test_the_kl_of_whole_responses_raises_what_the_token_mean_would_lower():
    kl = torch.full((2, 50), 0.16)
    per_response = sequence_kl(kl, torch.ones(2, 50, dtype=torch.bool)).mean().item()
    assert per_response == pytest.approx(8.0)
    # 8 / 6 is above the clip: 0.1 (1 + 0.2 * 2 / 1000); the token mean 0.16 gives 0.1 (1 - 0.2 * 2 / 1000)
    assert AdaptiveKLController(0.1, target=6, horizon=1000).update(per_response, 2) == pytest.approx(0.10004)
    assert AdaptiveKLController(0.1, target=6, horizon=1000).update(kl.mean().item(), 2) == pytest.approx(0.09996)


@pytest.mark.parametrize(
    ("coefficient", "target", "horizon", "named"),
    [
        (-0.1, 6, 10, "init_kl_coef"),
        (math.nan, 6, 10, "init_kl_coef"),
        (0.1, 0, 10, "target"),
        (0.1, -1, 10, "target"),
        (0.1, math.nan, 10, "target"),
        (0.1, 6, 0, "horizon"),
        (0.1, 6, -5, "horizon"),
    ],
)
def test_settings_that_cannot_work_are_refused(coefficient, target, horizon, named):
    with pytest.raises(ConfigError, match=f"{named}="):
        AdaptiveKLController(coefficient, target, horizon)


def test_zero_stays_zero():
    controller = AdaptiveKLController(0, target=1, horizon=10)
    assert controller.update(100, 10) == 0


def test_a_batch_larger_than_the_horizon_keeps_the_coefficient_positive():
    controller = AdaptiveKLController(0.1, target=1, horizon=10)
    assert controller.update(0, 1000) == pytest.approx(0.08)  # unbounded: 0.1 (1 - 0.2 * 100) < 0


def test_a_kl_that_is_not_a_number_moves_nothing():
    controller = AdaptiveKLController(0.1, target=1, horizon=10)
    assert controller.update(math.nan, 10) == 0.1
    assert controller.update(math.inf, 10) == pytest.approx(0.12)


def test_a_resumed_controller_goes_on_where_it_was():
    controller = AdaptiveKLController(0.2, target=6, horizon=10_000)
    for _ in range(3):
        controller.update(9, 256)
    # each time a fifth of 256 / 10 000 more: 0.2 * 1.00512^3
    assert controller.value == pytest.approx(0.20308776, abs=5e-9)
    resumed = AdaptiveKLController(0.2, target=6, horizon=10_000)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.value == controller.value != 0.2
    assert resumed.update(7, 3) == controller.update(7, 3)


@pytest.mark.parametrize("state", [{}, {"value": -1.0}, {"value": math.nan}])
def test_a_damaged_state_is_refused(state):
    controller = AdaptiveKLController(0.2, target=6, horizon=10)
    with pytest.raises(CheckpointError, match="KL controller"):
        controller.load_state_dict(state)
    assert controller.value == 0.2


@pytest.mark.parametrize("n_steps", [-1, math.nan])
def test_a_number_of_responses_is_not_negative(n_steps):
    controller = AdaptiveKLController(0.2, target=6, horizon=10)
    with pytest.raises(ConfigError, match=f"n_steps={n_steps}"):
        controller.update(9, n_steps)
    assert controller.value == 0.2
