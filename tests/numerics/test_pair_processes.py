"""Two processes that share the pairs take the steps of one: DPO and reward models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import dpo
from tests.support.launch import run_in_processes
from tests.support.pair_program import run, trace_of
from tests.support.reward_training import Stop, save_start

PROGRAM = "tests.support.pair_program"

UNLIKE = """
import json, torch
from rlcore.errors import DataError
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.pair_training import evaluate_pairs, measure_pairs
from rlcore.results import ignore_samples
from tests.support import dpo
from tests.support.lane_models import OneNumber


def measured(model, rows):
    if rank:
        raise DataError(f"rows {rows}")
    return torch.zeros(2, len(rows))


class Pairs:
    def __len__(self):
        return 4

    def length(self, row):
        return 1

    def sums(self, model, rows):
        return {"toy/loss": measured(model, rows).sum()}


def told(measure, *arguments):
    try:
        return measure(client, *arguments, 8)
    except Exception as error:
        return repr(error)


client = AsyncTrainingClient(OneNumber())
rank = client.processes.rank
failed = [told(evaluate_pairs, Pairs()), told(measure_pairs, [[0, 1]], measured)]

# a sink in the first process alone, as a program writes it that reports for all
samples = []
sink = ignore_samples if rank else lambda step, rows: samples.append([row["prompt"] for row in rows])
trainer = dpo.new_trainer(dpo.config(eval_prompts=3, batch_size=20), on_samples=sink)
trainer.train(dpo.pairs(), dpo.pairs(4))
trainer.close()
print(json.dumps({"failed": failed, "samples": samples}))
"""


def two_processes(trainer: str, folder: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two processes of one run returned."""
    written = run_in_processes(PROGRAM, 2, [trainer, folder, json.dumps(settings)])
    return [json.loads(text.splitlines()[-1]) for text in written]


def assert_alike(one: Path, two: Path) -> None:
    """Both folders hold the same reports, none of them twice, and the same files."""
    expected, found = trace_of(one), trace_of(two)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-5, abs=1e-5), step
    for names in ("model/*", "state/step-*/*"):
        assert {path.relative_to(two) for path in two.glob(names)} == {
            path.relative_to(one) for path in one.glob(names)
        }


@pytest.mark.long
def test_preference_training_in_two_processes_is_that_of_one(tmp_path: Path):
    # steps of 19 pairs, 10 and 9 of them, and of 1, which leaves a process without any; one pair at a time
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"batch_size": 1, "gradient_accumulation_steps": 19, "eval_every": 1, "eval_prompts": 3}
    alone = run("dpo", one, **settings)
    first, second = two_processes("dpo", two, settings)
    assert_alike(one, two)
    lines = [len((folder / "trace.jsonl").read_text().splitlines()) for folder in (one, two)]
    assert lines[0] == lines[1]
    assert len(alone["history"]["loss"]) == 4
    for name, values in alone["history"].items():
        assert first["history"][name] == pytest.approx(values, rel=1e-5, abs=1e-5), name
    # the replicas are equal to the last bit; the first process alone hands out answers, to the prompts of both
    assert (first["history"], first["weights"]) == (second["history"], second["weights"])
    assert second["samples"] == []
    for (step, expected), (found_step, found) in zip(alone["samples"], first["samples"], strict=True):
        assert found_step == step
        assert [row["prompt"] for row in found] == [row["prompt"] for row in expected]
    assert first["samples"][0] == alone["samples"][0]


@pytest.mark.slow
def test_two_processes_take_up_the_reward_training_of_one(tmp_path: Path):
    # steps of 6, 6 and 2 of 14 pairs; then rewards are normalised on 5 responses, 3 and 2 of them
    save_start(tmp_path / "start")
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"gradient_accumulation_steps": 3, "dropout_prob": 0.0, "center_rewards_coef": 0.1}
    settings |= {"reference_samples": 5, "reference_max_new_tokens": 4, "save_steps": 2}
    alone = run("reward", one, **settings)
    with pytest.raises(Stop):
        run("reward", two, stop_at=5, **settings)
    first, second = two_processes("reward", two, settings)
    assert_alike(one, two)
    assert second["samples"] == []
    assert {**first, "samples": []} == second
    assert first["best_step"] == alone["best_step"]
    ((_, expected),), ((_, found),) = alone["samples"], first["samples"]
    for name in ("prompt", "response"):
        assert [row[name] for row in found] == [row[name] for row in expected]
    # divided by a deviation of about 0.01
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in expected], abs=1e-3)


def test_a_process_that_differs_keeps_the_other_from_nothing():
    first, second = (json.loads(text) for text in run_in_processes(UNLIKE, timeout_s=60))
    # the second process measures the rows 1 and 3, then the row 1
    assert first["failed"] == second["failed"] == ["DataError('rows [1, 3]')", "DataError('rows [1]')"]
    assert first["samples"] == [dpo.COLUMNS["prompt"][:3]]
    assert second["samples"] == []
