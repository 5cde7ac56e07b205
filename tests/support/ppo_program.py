"""A run of PPO as a program: `python -m tests.support.ppo_program <folder> [settings as JSON]`.

The folder gets `trace.jsonl`, everything that was reported, `model` and `state`. The last line on stdout is the
history, the samples and a hash of the weights, as JSON.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.environments import PreferenceComparisonEnv
from rlcore.results import MetricSink
from rlcore.run_folder import weights_sha256
from tests.support.killed import pause_where_told
from tests.support.ppo import PROMPTS, mean_letter, tiny_config, tiny_trainer, untimed
from tests.support.tiny import tiny_tokenizer

SETTINGS = {"num_iterations": 6, "save_every": 1, "eval_every": 2}


def later_letters(prompt: str, first: str, second: str) -> float:
    """How much later in the alphabet the letters of the first response are."""
    return mean_letter([prompt], [first])[0] - mean_letter([prompt], [second])[0]


def rivals() -> PreferenceComparisonEnv:
    """An environment that compares the two responses to a prompt."""
    return PreferenceComparisonEnv(tiny_tokenizer(), PROMPTS, human_feedback_fn=later_letters)


def run(folder: Path, *, reward: str = "mean_letter", **changes: Any) -> dict[str, Any]:
    """Train; the history, the samples and the hash of the weights, the critic's among them.

    Args:
        folder: see above.
        reward: mean_letter, with validation prompts, or rivals, which has none.
        changes: to SETTINGS.
    """
    samples: list[Any] = []
    trainer = tiny_trainer(
        tiny_config(**SETTINGS | changes),
        reward_fn=mean_letter if reward == "mean_letter" else rivals(),
        on_metrics=trace_writer(folder),
        on_samples=lambda step, rows: samples.append([step, rows]),
    )
    validation = PROMPTS[:3] if reward == "mean_letter" else ()
    history = trainer.train(PROMPTS, validation_prompts=validation, resume_dir=folder / "state")
    trainer.save_model(folder / "model")
    weights = weights_sha256(trainer.model.named_parameters())
    trainer.close()
    return {"history": history, "samples": samples, "weights": weights}


def trace_writer(folder: Path) -> MetricSink:
    """A sink that appends to the folder's `trace.jsonl`, all but the number of steps."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(step: int, metrics: Mapping[str, float]) -> None:
        with (folder / "trace.jsonl").open("a") as file:
            file.write(json.dumps([step, {k: v for k, v in metrics.items() if k != "progress/total_steps"}]) + "\n")

    return write


def trace_of(folder: Path) -> dict[int, dict[str, float]]:
    """What was reported by iteration and name, times left out; of an iteration that was done twice, the last values."""
    trace: dict[int, dict[str, float]] = {}
    for line in (folder / "trace.jsonl").read_text().splitlines():
        step, metrics = json.loads(line)
        trace.setdefault(step, {}).update(untimed(metrics))
    return trace


if __name__ == "__main__":
    pause_where_told()
    outcome = run(Path(sys.argv[1]), **json.loads(sys.argv[2] if sys.argv[2:] else "{}"))
    sys.stdout.write(json.dumps(outcome) + "\n")
