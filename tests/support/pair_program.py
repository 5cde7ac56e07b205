"""A training on preference pairs as a program: `python -m tests.support.pair_program dpo|reward <folder> [settings]`.

The folder gets `trace.jsonl`, everything that was reported, `model` and `state`. The last line on stdout is what the
run returned and a hash of the weights, as JSON. The program `reward` starts from the model folder `<folder>/../start`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets

from rlcore.reward import train as train_reward
from rlcore.run_folder import weights_sha256
from tests.support import dpo, reward_training
from tests.support.killed import pause_where_told

DPO = {"num_epochs": 2, "save_every": 3, "eval_every": 4, "logging_steps": 1}
REWARD = {"logging_steps": 1, "save_steps": 3}


class _Writer:
    """A sink that appends to `trace.jsonl`."""

    def __init__(self, folder: Path, stop_at: int | None):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.stop_at = folder / "trace.jsonl", stop_at

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.stop_at:
            raise reward_training.Stop
        with self.path.open("a") as file:
            file.write(json.dumps([step, dict(metrics)]) + "\n")


def run(trainer: str, folder: Path, *, stop_at: int | None = None, **changes: Any) -> dict[str, Any]:
    """Train, unless a report of step `stop_at` raises Stop; what was returned, and what was sampled."""
    return {"dpo": _dpo, "reward": _reward}[trainer](folder, _Writer(folder, stop_at), changes)


def trace_of(folder: Path) -> dict[int, dict[str, float]]:
    """What was reported by step and name; of a step that was done twice, the last values. Without the total steps."""
    trace: dict[int, dict[str, float]] = {}
    for line in (folder / "trace.jsonl").read_text().splitlines():
        step, metrics = json.loads(line)
        trace.setdefault(step, {}).update(metrics)
    for metrics in trace.values():
        metrics.pop("progress/total_steps", None)
    return {step: metrics for step, metrics in trace.items() if metrics}


def _dpo(folder: Path, on_metrics: _Writer, changes: dict[str, Any]) -> dict[str, Any]:
    samples: list[Any] = []
    trainer = dpo.new_trainer(
        dpo.config(**DPO | changes),
        on_metrics=on_metrics,
        on_samples=lambda step, rows: samples.append([step, rows]),
    )
    history = trainer.train(dpo.pairs(), dpo.pairs(6, dpo.SWAPPED), resume_dir=folder / "state")
    trainer.save_model(folder / "model")
    trainer.close()
    return {"history": history, "samples": samples, "weights": weights_sha256(trainer.model.named_parameters())}


def _reward(folder: Path, on_metrics: _Writer, changes: dict[str, Any]) -> dict[str, Any]:
    start, samples = folder.parent / "start", []
    result = train_reward(
        reward_training.settings(start, **REWARD | changes),
        reward_training.pairs("validation"),
        folder / "model",
        reference=start,
        resume_dir=folder / "state",
        on_metrics=on_metrics,
        on_samples=lambda step, rows: samples.append([step, rows]),
    )
    return {"best_step": result.best_step, "final": result.final_metrics, "samples": samples}


if __name__ == "__main__":
    datasets.disable_progress_bars()
    pause_where_told()
    name, place, *rest = sys.argv[1:]
    sys.stdout.write(json.dumps(run(name, Path(place), **json.loads(rest[0] if rest else "{}"))) + "\n")
