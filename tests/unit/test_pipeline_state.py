"""Saved states: what is written and returned, what is refused, what survives."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlcore.errors import CheckpointError, ConfigError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from tests.support.lane_models import OneNumber, UniformModel, sgd
from tests.support.launch import ROOT

IDS = torch.tensor([[0, 1]])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def adam(client, **settings):
    return torch.optim.AdamW(client.model.parameters(), lr=0.1, **settings)


def trained_pipeline(optimizer_of=adam, scheduler_of=lambda optimizer: None, steps: int = 3):
    pipeline = ForwardBackwardPipeline(UniformModel(4))
    optimizer = optimizer_of(pipeline)
    scheduler = scheduler_of(optimizer)
    train(pipeline, optimizer, scheduler, steps)
    return pipeline, optimizer, scheduler


def train(pipeline, optimizer, scheduler=None, steps: int = 1) -> list[float]:
    """The losses of some steps."""
    losses = []
    for _ in range(steps):
        losses.append(pipeline.forward_backward(IDS))
        pipeline.optim_step(optimizer, scheduler).result()
    return [loss.result().loss for loss in losses]


def test_the_documented_call_writes_the_documented_files():
    pipeline, _, _ = trained_pipeline()
    saved = pipeline.save_state("checkpoint_1000")
    assert saved["path"] == "checkpoints/checkpoint_1000"
    assert set(saved) == {"path", "model_path", "optimizer_path", "state_path"}
    assert all(Path(path).exists() for path in saved.values())
    torch.testing.assert_close(load_file(saved["model_path"]), dict(pipeline.model.state_dict()), rtol=0, atol=0)
    assert pipeline.load_state("checkpoints/checkpoint_1000") is None
    assert [path.name for path in Path("checkpoints").iterdir()] == ["checkpoint_1000"]


def test_a_client_may_have_a_folder_of_its_own(tmp_path):
    with AsyncTrainingClient(OneNumber(), checkpoint_dir=tmp_path / "states") as client:
        assert client.save_state("v1.2-a") == {
            "path": str(tmp_path / "states" / "v1.2-a"),
            "model_path": str(tmp_path / "states" / "v1.2-a" / "model.safetensors"),
            "optimizer_path": str(tmp_path / "states" / "v1.2-a" / "optimizer.safetensors"),
            "state_path": str(tmp_path / "states" / "v1.2-a" / "state.json"),
        }


def test_before_the_first_step_the_optimizers_file_is_there_and_empty():
    with AsyncTrainingClient(OneNumber()) as client:
        saved = client.save_state("start")
        assert load_file(saved["optimizer_path"]) == {}
        assert json.loads(Path(saved["state_path"]).read_text())["update"] is None
        client.load_state(saved["path"])


def test_it_comes_behind_the_queued_work():
    gate = threading.Event()
    with AsyncTrainingClient(OneNumber()) as client:
        client.evaluate(lambda model: gate.wait())
        client.backward(lambda model: (model.weight.sum(), {}))
        client.optim_step(sgd(client), max_grad_norm=None)
        threading.Timer(0.05, gate.set).start()
        saved = client.save_state("later")
        assert load_file(saved["model_path"])["weight"].item() == -1.0
        client.backward(lambda model: (model.weight.sum(), {}))
        client.optim_step(sgd(client), max_grad_norm=None)
        client.load_state(saved["path"])
        assert client.model.weight.item() == -1.0
        client.backward(lambda model: (model.weight.sum(), {}))
        assert client.optim_step(sgd(client)).result().step == 2


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", ".", "", "/abs", "a/../../b", "nul\0", ".hidden", "a..b", 7])
def test_a_name_cannot_leave_the_folder(name):
    with AsyncTrainingClient(OneNumber()) as client, pytest.raises(ConfigError, match="as the name of a state"):
        client.save_state(name)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_not_saved_over_good_ones(value):
    with AsyncTrainingClient(OneNumber()) as client:
        client.save_state("best")
        client.model.weight.data.fill_(value)
        with pytest.raises(CheckpointError, match="model/weight holds NaN or infinity"):
            client.save_state("best")
        client.load_state("checkpoints/best")
        assert client.model.weight.item() == 0.0


def test_a_failed_window_is_not_saved():
    with AsyncTrainingClient(OneNumber()) as client:
        client.backward(lambda model: 1 / 0).exception()
        with pytest.raises(CheckpointError, match="failed micro-batch in the open optimiser step"):
            client.save_state("x")
        client.optim_step(sgd(client)).exception()
        client.save_state("x")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: None, None),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "optimizer.safetensors").write_bytes(b"x"), "optimizer.safetensors has 1 bytes"),
        (lambda folder: (folder / "manifest.json").unlink(), "the manifest cannot be read"),
        (lambda folder: (folder / "state.json").write_text("{}"), "state.json has 2 bytes"),
        (lambda folder: folder.rename("checkpoints/moved"), "found no such folder"),
    ],
)
def test_a_folder_that_is_not_whole_changes_nothing(damage, message):
    pipeline, optimizer, _ = trained_pipeline()
    folder = Path(pipeline.save_state("x")["path"])
    train(pipeline, optimizer)
    damage(folder)
    before = pipeline.model.logit.clone()
    if message is None:
        pipeline.load_state(folder)
        assert not torch.equal(pipeline.model.logit, before)
        return
    with pytest.raises(CheckpointError, match=message):
        pipeline.load_state(folder)
    assert torch.equal(pipeline.model.logit, before)
    assert pipeline.evaluate(lambda model: True).result()


def test_another_model_is_refused_by_the_name_of_a_weight():
    trained_pipeline()[0].save_state("x")
    for other, message in ((UniformModel(5), r"float32 \[4\], expected torch.float32 \[5\]"), (OneNumber(), "none")):
        with ForwardBackwardPipeline(other) as pipeline, pytest.raises(CheckpointError, match=message):
            pipeline.load_state("checkpoints/x")
    with ForwardBackwardPipeline(UniformModel(4).half()) as pipeline, pytest.raises(CheckpointError, match="float16"):
        pipeline.load_state("checkpoints/x")


def test_a_checkpoint_of_something_else_is_refused():
    from rlcore.checkpoint import save_checkpoint

    path = save_checkpoint(Path("run"), 3, {"model": OneNumber().state_dict()}, {"kl_coef": 0.1})
    with AsyncTrainingClient(OneNumber()) as client, pytest.raises(CheckpointError, match="another kind of checkpoint"):
        client.load_state(path)


# Optimizer and scheduler.


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def multi_step(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4], gamma=0.5)


def warmed_up(optimizer):
    scheduler = torch.optim.lr_scheduler
    ramp = scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 4)
    return scheduler.SequentialLR(optimizer, [ramp, scheduler.CosineAnnealingLR(optimizer, 5)], milestones=[3])


@pytest.mark.parametrize("scheduler_of", [exponential, multi_step, warmed_up])
def test_a_new_optimizer_and_scheduler_go_on_where_the_saved_ones_were(scheduler_of):
    pipeline, optimizer, scheduler = trained_pipeline(scheduler_of=scheduler_of)
    folder = pipeline.save_state("x")["path"]
    expected = train(pipeline, optimizer, scheduler, 4)
    other = ForwardBackwardPipeline(UniformModel(4))
    other.load_state(folder)
    new_optimizer = adam(other)
    new_scheduler = scheduler_of(new_optimizer)
    assert train(other, new_optimizer, new_scheduler, 4) == expected
    assert new_scheduler.get_last_lr() == scheduler.get_last_lr()
    assert torch.equal(other.model.logit, pipeline.model.logit)


def test_a_state_saved_again_before_any_step_is_the_same_state():
    pipeline, _, _ = trained_pipeline(scheduler_of=exponential)
    first = pipeline.save_state("first")
    other = ForwardBackwardPipeline(UniformModel(4))
    other.load_state(first["path"])
    second = other.save_state("second")
    for name in ("model_path", "optimizer_path", "state_path"):
        assert Path(first[name]).read_bytes() == Path(second[name]).read_bytes()


@pytest.mark.parametrize(
    ("optimizer_of", "scheduler_of", "message"),
    [
        (sgd, exponential, "state of AdamW and ExponentialLR, expected that of SGD and ExponentialLR"),
        (adam, lambda optimizer: None, "expected that of AdamW"),
        (adam, multi_step, "expected that of AdamW and MultiStepLR"),
        (
            lambda client: torch.optim.AdamW([{"params": [client.model.logit]}, {"params": [torch.zeros(1)]}]),
            exponential,
            r"parameters a group, expected \[1, 1\]",
        ),
    ],
)
def test_an_optimizer_or_scheduler_that_does_not_fit_is_refused(optimizer_of, scheduler_of, message):
    trained_pipeline(scheduler_of=exponential)[0].save_state("x")
    pipeline = ForwardBackwardPipeline(UniformModel(4))
    pipeline.load_state("checkpoints/x")
    optimizer = optimizer_of(pipeline)
    pipeline.forward_backward(IDS)
    with pytest.raises(CheckpointError, match=message):
        pipeline.optim_step(optimizer, scheduler_of(optimizer)).result()
    right = adam(pipeline)
    train(pipeline, right, exponential(right))


def test_moments_of_later_steps_do_not_go_with_a_state_from_before_them():
    pipeline = ForwardBackwardPipeline(UniformModel(4))
    pipeline.save_state("start")
    train(pipeline, adam(pipeline))
    with pytest.raises(CheckpointError, match="from before the first optimiser step"):
        pipeline.load_state("checkpoints/start")


def test_an_open_window_goes_with_its_accumulation_only():
    pipeline = ForwardBackwardPipeline(UniformModel(4), gradient_accumulation_steps=2)
    pipeline.forward_backward(IDS)
    pipeline.save_state("open")
    with (
        ForwardBackwardPipeline(UniformModel(4), gradient_accumulation_steps=3) as other,
        pytest.raises(CheckpointError, match="gradient_accumulation_steps=2, expected 3"),
    ):
        other.load_state("checkpoints/open")


# A kill.

KILLED = """
import os, signal
from pathlib import Path
from rlcore.forward_backward import ForwardBackwardPipeline
from tests.support.lane_models import UniformModel
pipeline = ForwardBackwardPipeline(UniformModel(4))
pipeline.save_state("x")
pipeline.model.logit.data.fill_(9.0)
rename, calls = Path.rename, []
def kill_between(self, target):
    calls.append(target)
    return os.kill(os.getpid(), signal.SIGKILL) if len(calls) == 2 else rename(self, target)
Path.rename = kill_between
pipeline.save_state("x")
"""


def test_sigkill_between_the_two_renames_of_a_save_leaves_the_earlier_state():
    # kills elsewhere in a save: test_checkpoint
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not Path("checkpoints/x").exists()
    with ForwardBackwardPipeline(UniformModel(4)) as pipeline:
        pipeline.model.logit.data.fill_(5.0)
        pipeline.load_state("checkpoints/x")
        assert pipeline.model.logit.tolist() == [0.0] * 4
        pipeline.save_state("x")
    assert [path.name for path in Path("checkpoints").iterdir()] == ["x"]
