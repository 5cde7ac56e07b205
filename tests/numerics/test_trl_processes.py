"""TRL's trainers in two processes: on pairs the steps of one, in GRPO its responses; one report, and one error."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.trl_trainers import dpo, grpo, reward
from tests.support import trl as small
from tests.support.launch import run_in_processes
from tests.support.ppo import share_of_e

pytestmark = pytest.mark.long

PROGRAM = """
import json, sys
from pathlib import Path
from rlcore.errors import DataError
from tests.numerics.test_trl_processes import NAMES, no_score_in_the_second, trained

start, folder = map(Path, sys.argv[1:])
told = {name: trained(name, start, folder / name) for name in NAMES}
try:
    trained("grpo", start, folder / "failed", no_score_in_the_second)
except DataError as error:
    told["failed"] = str(error)
print("told", json.dumps(told))
"""
NAMES = ("dpo", "reward", "grpo")
PROMPTS = small.grpo_prompts()


def trained(name: str, start: Path, output_dir: Path, score: Any = share_of_e) -> dict[str, Any]:
    """What was reported by step, and how many answers were handed over at each evaluation."""
    module, config, rows, arguments = {
        "dpo": (dpo, small.dpo_config(start, eval_prompts=3), small.PAIRS, {}),
        "reward": (reward, small.reward_config(start), small.PAIRS, {}),
        "grpo": (grpo, small.grpo_config(start, num_iterations=2), PROMPTS, {"reward": score}),
    }[name]
    told: dict[str, Any] = {"trace": {}, "samples": []}

    def keep(step: int, metrics: Mapping[str, float]) -> None:
        told["trace"].setdefault(str(step), {}).update(metrics)

    def count(step: int, rows: list[dict[str, Any]]) -> None:
        told["samples"].append(len(rows))

    module.train(
        config,
        small.split(rows, 12, 3 if name == "grpo" else 4),
        output_dir,
        on_metrics=keep,
        on_samples=count,
        **arguments,
    )
    return told


def no_score_in_the_second(prompts: list[str], responses: list[str], metadata: Any = None) -> list[Any]:
    return ["good" if os.environ["RANK"] == "1" else 1.0] * len(responses)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What one process tells, and then the first and the second one of two."""
    folder = tmp_path_factory.mktemp("processes")
    start = small.start_folder(folder / "start")
    written = run_in_processes(PROGRAM, 2, [start, folder / "two"])
    first, second = (json.loads(text.rpartition("told ")[2]) for text in written)
    return {name: trained(name, start, folder / name) for name in NAMES}, first, second


@pytest.mark.parametrize("name", ["dpo", "reward"])
def test_steps_over_pairs_are_those_of_one_process(told, name: str):
    alone, first, _ = (each[name] for each in told)
    assert first["samples"] == alone["samples"]
    assert first["trace"].keys() == alone["trace"].keys()
    for step, metrics in alone["trace"].items():
        assert first["trace"][step] == pytest.approx(metrics, rel=1e-5, abs=1e-5), step


def test_responses_are_those_of_one_process_while_the_policy_is(told):
    # TRL shuffles the responses in each process by itself, so that after the first update the policies differ
    alone, first, _ = (each["grpo"] for each in told)
    for name in ("reward/score_mean", "reward/zero_spread_fraction", "response/length_mean"):
        assert first["trace"]["1"][name] == pytest.approx(alone["trace"]["1"][name], abs=1e-6)
    # 3 validation prompts for 2 processes: one is asked twice and handed over once
    assert first["samples"] == alone["samples"] == [3]


def test_the_first_process_alone_reports_and_an_error_in_one_ends_both(told):
    _, first, second = told
    assert [second[name] for name in NAMES] == [{"trace": {}, "samples": []}] * 3
    assert first["failed"] == second["failed"]
    assert "response 0, returned 'good', expected a finite number" in first["failed"]
