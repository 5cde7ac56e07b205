"""A bad step is skipped and counted, too many in a row stop training; a KL that cannot be one is warned of."""

import pytest

from rlcore.errors import ConfigError, TrainingDiverged
from rlcore.health import NegativeKLWatch, NonFiniteGuard

NAN, INFINITY = float("nan"), float("inf")


def test_finite_steps_are_taken():
    guard = NonFiniteGuard(1)
    assert guard.accepts(loss=1e30, grad_norm=0.0)
    assert guard.state_dict() == {"skipped": 0, "in_a_row": 0}


@pytest.mark.parametrize("values", [{"loss": NAN}, {"grad_norm": INFINITY}, {"loss": 1.0, "grad_norm": -INFINITY}])
def test_one_bad_number_skips_the_step(values):
    guard = NonFiniteGuard(2)
    assert not guard.accepts(**values)
    assert guard.state_dict() == {"skipped": 1, "in_a_row": 1}


def test_a_good_step_starts_the_row_anew():
    guard = NonFiniteGuard(2)
    taken = [guard.accepts(loss=loss) for loss in (NAN, 1.0, NAN, 1.0)]
    assert taken == [False, True, False, True]
    assert guard.state_dict() == {"skipped": 2, "in_a_row": 0}


def test_the_last_of_a_row_stops_training_and_names_the_number():
    guard = NonFiniteGuard(3)
    assert [guard.accepts(loss=NAN) for _ in range(2)] == [False, False]
    with pytest.raises(TrainingDiverged, match="loss=nan for 3 optimiser steps"):
        guard.accepts(loss=NAN, grad_norm=1.0)


def test_the_row_goes_on_after_a_resume():
    guard = NonFiniteGuard(2)
    guard.accepts(loss=NAN)
    resumed = NonFiniteGuard(2)
    resumed.load_state_dict(guard.state_dict())
    with pytest.raises(TrainingDiverged):
        resumed.accepts(loss=NAN)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError):
        NonFiniteGuard(0)


def test_a_log_ratio_that_stays_below_zero_is_warned_of_once(caplog):
    watch = NegativeKLWatch(patience=3)
    # rounding, a positive one and NaN each end the row
    for kl in (-0.5, -0.5, -1e-8, -0.5, -0.5, 0.1, -0.5, -0.5, NAN, -0.5, -0.5):
        watch.see(kl)
    assert caplog.text == ""
    watch.see(-0.25)
    assert "kl/ref_token_mean has been below 0 for 3 iterations, -0.25 nats in the last one" in caplog.text
    for kl in (0.1, -0.5, -0.5, -0.5, -0.5):
        watch.see(kl)
    assert caplog.text.count("kl/ref_token_mean") == 1
