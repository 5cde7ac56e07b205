"""A training in the hotel as a program: `python -m tests.support.grpo_program <folder> [settings]`.

The folder gets `trace.jsonl`, everything that was reported, `model` and `state`. The last line on stdout is the history
of the run and a hash of the weights, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rlcore.run_folder import weights_sha256
from tests.support.hotel import hotel_config, hotel_trainer
from tests.support.killed import pause_where_told
from tests.support.ppo_program import trace_writer


def run(folder: Path, **settings: Any) -> dict[str, Any]:
    """Train, or go on, and write the model; what was returned."""
    samples: list[Any] = []
    trainer = hotel_trainer(
        hotel_config(**{"num_iterations": 6, "save_every": 3, "eval_every": 2, **settings}),
        on_metrics=trace_writer(folder),
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
