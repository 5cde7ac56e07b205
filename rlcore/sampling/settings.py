"""Numbers that a caller sets, checked before anything begins."""

from numbers import Integral, Real


def is_whole(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number, NaN and infinity included; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
