"""What came out of a row, and the JSON file that keeps it with its raw rounds."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REACHED, BELOW, NOT_SHOWN, NOTED = "reached", "below", "not shown", "noted"
"""At least the must; less; nothing that counts was measured; a row without a must."""


@dataclass(frozen=True)
class Result:
    """One row as measured."""

    name: str
    title: str
    must: str
    aim: str
    status: str
    value: str = ""
    """Median and spread, for people."""
    median: float | None = None
    least: float | None = None
    most: float | None = None
    must_value: float | None = None
    above_one: str = ""
    """Rounds above 1, of those that count."""
    load: str = ""
    """Least and most when a round began."""
    work: str = ""
    """What either side counted in a unit."""
    note: str = ""
    reason: str = ""
    """Why it is not shown."""
    smoke: bool = False
    """Tiny sizes, which prove that it runs and nothing else."""
    measured_at: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)


def read_results(file: Path) -> dict[str, Result]:
    """By name; empty where there is no file."""
    if not file.exists():
        return {}
    return {row["name"]: Result(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}


def write_results(file: Path, results: dict[str, Result]) -> None:
    """All rows with the machine they were measured on, in one step."""
    machine = {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version()}
    values = {"machine": machine, "rows": [asdict(result) for result in results.values()]}
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".partial")
    draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    draft.replace(file)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((row.partition(":")[2].strip() for row in file if row.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
