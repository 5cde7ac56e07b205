"""Before two arms are timed: that they compute the same. A row whose arms do not is not shown."""

from collections.abc import Iterator
from typing import Any

from benchmarks.process import Worker
from benchmarks.protocol import Facts

TOLERANCES = {"ids": 0.0, "logprobs": 1e-5, "advantages": 1e-5, "loss": 1e-4}
"""Largest difference of a fact, by the first part of its name; `input/…` is what the other side is to work on."""


def exchange(ours: Worker, peer: Worker) -> list[str]:
    """Let both sides compute their facts, each knowing the other's; returns what differs."""
    first = ours.facts()
    theirs = peer.facts(first)
    return differences({**first, **ours.facts(theirs)}, theirs)


def differences(ours: Facts, theirs: Facts) -> list[str]:
    """A line for each fact that differs by more than its tolerance, or that one side alone has."""
    compared = {name for facts in (ours, theirs) for name in facts if not name.startswith("input/")}
    found = [fault for name in sorted(compared) if (fault := _fault(name, ours.get(name), theirs.get(name)))]
    return found if compared else ["nothing was compared"]


def _fault(name: str, ours: Any, theirs: Any) -> str | None:
    if ours is None or theirs is None:
        return f"{name}: {'ours' if ours is None else 'the peer'} has none"
    left, right = list(_numbers(ours)), list(_numbers(theirs))
    if len(left) != len(right) or not left:
        return f"{name}: {len(left)} numbers and {len(right)}"
    tolerance = TOLERANCES[name.split("/")[0]]
    most = max(abs(a - b) for a, b in zip(left, right, strict=True))
    # Not `most > tolerance`: NaN is a difference.
    return None if most <= tolerance else f"{name}: differs by {most:.2g}, at most {tolerance:g} expected"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for part in value:
            yield from _numbers(part)
    else:
        yield float(value)
