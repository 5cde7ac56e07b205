"""A file in a model folder that says which trainers made the model and what the last one measured."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.results import TrainResult

RECORD = "training.json"
"""Name of the file."""


def record_training(result: TrainResult, trainer: str, start: str) -> None:
    """Write the file into a published model folder, in one step. Metrics that are not finite are left out.

    A trainer whose published weights are those that it started from is not named.

    Args:
        result: of the last trainer.
        trainer: its name.
        start: folder or hub name of the model that it started from.
    """
    record = {
        "trainers": recorded_trainers(start) + ([trainer] if result.best_step else []),
        "best_step": result.best_step,
        "metrics": {name: value for name, value in sorted(result.best_metrics.items()) if math.isfinite(value)},
    }
    draft = result.model_dir / f".{RECORD}.tmp"
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(result.model_dir / RECORD)


def recorded_trainers(model: str | Path) -> list[str]:
    """The trainers that made a model, in their order; none where its folder does not say."""
    trainers = json_object(Path(model) / RECORD).get("trainers")
    return list(map(str, trainers)) if isinstance(trainers, list) else []


def recorded_metric(model: str | Path, name: str) -> float | None:
    """A metric of the last trainer of a model; None where its folder does not say."""
    metrics = json_object(Path(model) / RECORD).get("metrics", {})
    value = metrics.get(name) if isinstance(metrics, dict) else None
    return float(value) if isinstance(value, int | float) else None


def json_object(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file; an empty one where there is no such file or something else in it."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
