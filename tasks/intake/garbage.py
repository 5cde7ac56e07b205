"""Python's search for garbage, which would take a third of the time of a look at many rows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = (100_000, 50, 100)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for garbage seldom inside: rows and findings are in no cycles, and go when nobody holds them."""
    earlier = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*earlier)
