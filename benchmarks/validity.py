"""When a measurement counts: the machine was quiet, and the process had its core."""

import os

from benchmarks.protocol import Measurement

MOST_WALL_PER_CPU = 1.3
"""A process that waits longer shared its core."""


def load() -> float:
    """Processes that wanted to run, mean of the last minute."""
    return os.getloadavg()[0]


def fault_of(load_before: float, measured: list[Measurement], cores: int | None = None) -> str | None:
    """Why a round does not count; None where it does.

    Args:
        load_before: load when the round began.
        measured: its units.
        cores: of the machine; None asks it.
    """
    cores = cores or os.cpu_count() or 1
    if load_before > cores:
        return f"load {load_before:.1f} on {cores} cores"
    waited = max(unit.wall_s / max(unit.cpu_s, 1e-9) for unit in measured)
    return f"wall/CPU {waited:.2f}" if waited > MOST_WALL_PER_CPU else None
