"""How often Python looks for garbage."""

import gc

import pytest

from tasks.intake.garbage import seldom_collected


def test_garbage_is_searched_for_seldom_inside_and_as_before_afterwards():
    earlier, inside = gc.get_threshold(), []

    @seldom_collected()
    def fail():
        inside.append(gc.get_threshold()[0])
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert inside[0] > 10 * earlier[0]
    assert gc.get_threshold() == earlier
    assert gc.isenabled()
