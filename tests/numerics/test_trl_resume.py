"""A TRL run that was killed ends where the uninterrupted one does: the same trace, and weights that are equal bits."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pytest
import torch

from rlcore.configs import LoraConfig, StageConfig
from rlcore.errors import CheckpointError
from rlcore.results import ignore_metrics
from rlcore.trl_trainers import dpo, grpo, orpo, reward, sft
from tests.support import trl as small
from tests.support.ppo import share_of_e


class Case(NamedTuple):
    """A trainer, its settings and data; the step of the trace at which it is killed, the last one saved before, all."""

    module: Any
    config: Callable[..., StageConfig]
    rows: datasets.Dataset
    validation: int
    settings: Mapping[str, Any]
    killed_at: int
    saved_at: int
    steps: int
    arguments: Mapping[str, Any] = {}

    def train(self, start: Path, output_dir: Path, **arguments: Any) -> Any:
        data = small.split(self.rows, 12, self.validation)
        return self.module.train(
            self.config(start, **self.settings), data, output_dir, **{**self.arguments, **arguments}
        )


PAIRS, PROMPTS = small.PAIRS, small.grpo_prompts()
LORA = {"lora": LoraConfig(rank=4)}
# Dropout in front of the adapters draws from the global stream.
REWARD_LORA = {"save_steps": 4, "use_lora": True, "lora_dropout": 0.5}
SCORED = {"reward": share_of_e}
FEW = {"batch_size": 8, "mini_batch_size": 4}
# 12 rows in batches of 4 are 3 steps an epoch.
CASES = {
    "sft": Case(sft, small.sft_config, small.DEMONSTRATIONS, 4, {"eval_every": 3}, 6, 4, 8),
    "sft with adapters": Case(sft, small.sft_config, small.DEMONSTRATIONS, 4, LORA | {"eval_every": 3}, 6, 4, 8),
    "reward": Case(reward, small.reward_config, PAIRS, 4, {"save_steps": 4}, 6, 4, 6),
    "reward with adapters": Case(reward, small.reward_config, PAIRS, 0, REWARD_LORA, 6, 4, 6),
    "dpo": Case(dpo, small.dpo_config, PAIRS, 4, {}, 6, 4, 6),
    "dpo with adapters": Case(dpo, small.dpo_config, PAIRS, 0, LORA, 6, 4, 6),
    "orpo": Case(orpo, small.orpo_config, PAIRS, 4, {}, 6, 4, 6),
    "grpo": Case(grpo, small.grpo_config, PROMPTS, 4, FEW, 4, 2, 4, SCORED),
    "grpo with adapters": Case(grpo, small.grpo_config, PROMPTS, 0, FEW | LORA, 4, 2, 4, SCORED),
}


class Killed(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.start_folder(tmp_path_factory.mktemp("start"))


class Whole(NamedTuple):
    """What an uninterrupted run left."""

    result: Any
    trace: list[tuple[int, dict[str, float]]]
    model: Path


@pytest.fixture(scope="module")
def whole_run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The uninterrupted run of a case, which is done once."""

    @cache
    def run(name: str) -> Whole:
        trace: list[tuple[int, dict[str, float]]] = []
        model = tmp_path_factory.mktemp("whole") / "model"
        return Whole(CASES[name].train(start, model, on_metrics=lambda *point: trace.append(point)), trace, model)

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(
    name: str, start: Path, tmp_path: Path, whole_run: Callable[[str], Whole]
):
    case = CASES[name]
    resumed_trace: list[tuple[int, dict[str, float]]] = []

    def kill(step: int, metrics: Mapping[str, float]) -> None:
        if step == case.killed_at:
            raise Killed

    whole, whole_trace, whole_model = whole_run(name)
    with pytest.raises(Killed):
        case.train(start, tmp_path / "resumed", resume_dir=tmp_path / "steps", on_metrics=kill)
    assert not (tmp_path / "resumed").exists()
    resumed = case.train(
        start,
        tmp_path / "resumed",
        resume_dir=tmp_path / "steps",
        on_metrics=lambda *point: resumed_trace.append(point),
    )
    assert_same_weights(whole_model, tmp_path / "resumed")
    assert_moved(start, whole_model)
    assert [step for step, _ in resumed_trace[:2]] == [0, case.saved_at + 1]
    assert [point for point in whole_trace if point[0] > case.saved_at] == resumed_trace[1:]
    assert whole_trace[-1][0] == case.steps
    assert (resumed.best_step, resumed.final_metrics, resumed.best_metrics) == (
        whole.best_step,
        whole.final_metrics,
        whole.best_metrics,
    )


@pytest.mark.parametrize("name", ["sft", "dpo", "reward with adapters"])
def test_a_run_killed_while_it_publishes_takes_no_step_more(
    name: str, start: Path, tmp_path: Path, whole_run: Callable[[str], Whole], monkeypatch: pytest.MonkeyPatch
):
    case = CASES[name]
    whole, _, whole_model = whole_run(name)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(case.module, "save_causal_lm", kill)
        with pytest.raises(Killed):
            case.train(start, tmp_path / "again", resume_dir=tmp_path / "steps")
    trace: list[int] = []
    again = case.train(
        start, tmp_path / "again", resume_dir=tmp_path / "steps", on_metrics=lambda step, _: trace.append(step)
    )
    assert trace == [0]
    assert (again.best_step, again.final_metrics) == (whole.best_step, whole.final_metrics)
    assert_same_weights(whole_model, tmp_path / "again")


@pytest.mark.parametrize("name", ["reward", "dpo", "orpo", "grpo"])
def test_a_checkpoint_of_another_run_is_refused(name: str, start: Path, tmp_path: Path):
    case = CASES[name]

    def train(**changes: Any) -> None:
        case._replace(settings={**case.settings, **changes}).train(
            start, tmp_path / "model", resume_dir=tmp_path / "steps", on_metrics=ignore_metrics
        )

    train()
    with pytest.raises(CheckpointError, match=r"config\.seed: found 0, expected 1"):
        train(seed=1)
    with pytest.raises(CheckpointError, match="start: found"):
        case.train(small.start_folder(tmp_path / "other", seed=2), tmp_path / "model", resume_dir=tmp_path / "steps")


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = small.weights_of(first), small.weights_of(second)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def assert_moved(start: Path, model: Path) -> None:
    before, after = small.weights_of(start), small.weights_of(model)
    assert any(not torch.equal(before[name], after[name]) for name in before.keys() & after.keys())
