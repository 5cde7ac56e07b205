"""A training in the hotel as a program: `python -m tests.support.grpo_program <folder> [settings]`.

The folder gets `trace.jsonl`, everything that was reported, `model` and `state`. The last line on stdout is the history
of the run and a hash of the weights, as JSON.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.run_folder import weights_sha256
from tests.support.hotel import hotel_config, hotel_trainer
from tests.support.killed import pause_where_told

TIMED = ("time/", "throughput/")
"""Metrics of the clock, which no two runs share."""


def run(folder: Path, **settings: Any) -> dict[str, Any]:
    """Train, or go on, and write the model; what was returned."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[Any] = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        kept = {name: value for name, value in metrics.items() if not name.startswith(TIMED)}
        with (folder / "trace.jsonl").open("a") as file:
            file.write(json.dumps([step, kept]) + "\n")

    trainer = hotel_trainer(
        hotel_config(**{"num_iterations": 6, "save_every": 3, "eval_every": 2, **settings}),
        on_metrics=report,
        on_samples=lambda step, rows: samples.append([step, rows]),
    )
    prompts = trainer.environment_prompts()
    history = trainer.train(validation_prompts=prompts[:3], resume_dir=folder / "state")
    trainer.save_model(folder / "model")
    trainer.close()
    return {"history": history, "samples": samples, "weights": weights_sha256(trainer.model.named_parameters())}


if __name__ == "__main__":
    pause_where_told()
    returned = run(Path(sys.argv[1]), **json.loads(sys.argv[2] if sys.argv[2:] else "{}"))
    sys.stdout.write(json.dumps(returned) + "\n")
