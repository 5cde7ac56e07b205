"""What the runner and a worker say to each other: one JSON object a line. Peers read it too: standard library only."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

Facts = dict[str, Any]
"""Plain values that two arms are compared by before they are timed."""


@dataclass(frozen=True)
class Work:
    """What one unit of an arm has done."""

    count: int
    """Real tokens or pairs, padding left out: what the time is divided by."""
    steps: int = 0
    """Optimiser steps."""
    loss: float | None = None
    """The last one, nats or reward units."""
    parts: dict[str, float] = field(default_factory=dict)
    """CPU seconds of parts that are worth a line of their own, by name."""


@dataclass(frozen=True)
class Measurement:
    """One unit: what was done, and what it cost the worker's process."""

    work: Work
    cpu_s: float
    """Of all threads of the process."""
    wall_s: float
    unit_peak_bytes: int = 0
    """Peak resident memory of the unit, above that before it."""
    peak_bytes: int = 0
    """Peak resident memory since the imports, above that after them."""

    @property
    def cost(self) -> float:
        """CPU seconds per counted token or pair."""
        return self.cpu_s / self.work.count

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Measurement":
        """From what as_values made."""
        return cls(**{**values, "work": Work(**values["work"])})

    def as_values(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Arm(Protocol):
    """One side of a comparison. Built once from its settings, then asked for one unit after the other."""

    def unit(self) -> Work:
        """Do the work once. The first one warms up and is not measured."""

    def facts(self, other: Facts | None) -> Facts:
        """What this side computes on the inputs of the comparison, before the first unit.

        Args:
            other: the facts of the other side, where it was asked first.
        """


def line(message: dict[str, Any]) -> bytes:
    """A message as it goes over the pipe."""
    return json.dumps(message).encode() + b"\n"


def message(text: bytes) -> dict[str, Any]:
    """A line of the pipe as a message.

    Raises:
        ValueError: it is none.
    """
    read = json.loads(text)
    if not isinstance(read, dict):
        raise ValueError(f"Found {text[:200]!r}, expected a JSON object. The arm printed over the pipe.")
    return read
