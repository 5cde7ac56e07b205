"""A plan as a table for the terminal."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tasks.running.plan import Plan, StagePlan
from tasks.running.progress import duration

REASONS = 3
"""Most reasons shown for one stage."""
GIB = 2**30


def plan_table(plan: Plan) -> Group:
    """What would happen to each stage, and what all of it takes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("stage", "", "why", "time", "memory", "disk"):
        table.add_column(name, justify="right" if name in ("time", "memory", "disk") else "left")
    for stage in plan.stages:
        table.add_row(stage.stage, stage.action, _reasons(stage), *_needs(stage))
    return Group(table, Text("\n".join(_summary(plan))))


def _reasons(stage: StagePlan) -> str:
    more = len(stage.reasons) - REASONS
    return "\n".join((*stage.reasons[:REASONS], *((f"and {more} more",) if more > 0 else ())))


def _needs(stage: StagePlan) -> tuple[str, str, str]:
    if stage.action == "runs":
        time = "unknown" if stage.seconds is None else f"about {duration(stage.seconds)}"
        memory = [f"{stage.memory_gib:.1f} GiB"] if stage.memory_gib is not None else []
        memory += [f"GPU {stage.gpu_memory_gib:.1f} GiB"] if stage.gpu_memory_gib is not None else []
        return time, "\n".join(memory) or "unknown", "unknown" if stage.disk_bytes is None else size(stage.disk_bytes)
    return "", "", size(stage.disk_bytes) if stage.disk_bytes else ""


def _summary(plan: Plan) -> Iterator[str]:
    running = plan.running()
    known = [stage.seconds for stage in running if stage.seconds is not None]
    took = f", about {duration(sum(known))} by the last runs" if known else ""
    unknown = f" ({len(running) - len(known)} of them unknown)" if known and len(known) < len(running) else ""
    yield f"\n{len(running)} of {len(plan.stages)} stages would run{took}{unknown}. Nothing was started."
    for change in plan.changed_parameters:
        yield f"params.yaml would change: {change}"
    needed = sum(stage.disk_bytes or 0 for stage in plan.stages)
    if needed > plan.free_bytes:
        yield f"The disk has {size(plan.free_bytes)} free, and {size(needed)} are needed: `rlhf gc` makes room."
    for stage in running:
        if stage.memory_gib is not None and stage.memory_gib > plan.memory_gib:
            yield f"{stage.stage} had {stage.memory_gib:.1f} GiB last time; this machine has {plan.memory_gib:.1f} GiB."


def size(count: int) -> str:
    """A number of bytes in words."""
    for unit, limit in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count} bytes"
