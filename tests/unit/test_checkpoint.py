"""Checkpoints are whole or absent; state comes back bit for bit; nothing is unpickled."""

import errno
import json
import logging
import os
import pickle
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import rlcore
from rlcore.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    publish,
    save_checkpoint,
    write_tensors,
)
from rlcore.checkpoint.manifest import write_manifest
from rlcore.errors import CheckpointError, ConfigError
from rlcore.run_folder import pack_optimizer, unpack_optimizer

WEIGHTS = {"model": {"weight": torch.tensor([[1.5, -2.0]])}}


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def save_all(folder: Path, *steps: int, **options) -> None:
    for step in steps:
        save_checkpoint(folder, step, WEIGHTS, {"step": step}, **options)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    tensors = {
        "model": {"weight": torch.tensor([[0.1, -0.0]]), "half": torch.tensor([1.5], dtype=torch.bfloat16)},
        "counts": {"seen": torch.tensor([3, 4]), "mask": torch.tensor([True, False])},
    }
    state = {"coef": 0.1 + 0.2, "names": ["a", "ü"], "best": None, "nested": {"flag": True}}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 7, tensors, state))
    assert (loaded.step, loaded.state) == (7, state)
    for group, entries in tensors.items():
        assert loaded.tensors[group].keys() == entries.keys()
        for name, tensor in entries.items():
            assert loaded.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[group][name], tensor)
    # -0.0 == 0.0, so equality alone would not see a lost sign
    assert torch.signbit(loaded.tensors["model"]["weight"][0, 1])


def test_tied_weights_are_stored_once_and_tied_again(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {"model": {"embedding": shared, "lm_head": shared, "transposed": shared.T, "row": shared[1]}}
    path = save_checkpoint(tmp_path, 1, tensors, {})
    assert load_file(path / "model.safetensors").keys() == {"embedding", "transposed", "row"}
    model = load_checkpoint(path).tensors["model"]
    assert model["lm_head"] is model["embedding"]
    assert torch.equal(model["transposed"], shared.T)
    assert torch.equal(model["row"], shared[1])


def test_steps_sort_as_integers(tmp_path):
    # as text, step-100 comes before step-20
    save_all(tmp_path, 20, 100, max_kept=5)
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100"


@pytest.mark.parametrize(("max_kept", "left"), [(2, [20, 50, 100]), (1, [20, 100])])
def test_rotation_spares_the_best_and_the_last(tmp_path, max_kept, left):
    # 20 is the best; of the others the newest one or two stay
    save_all(tmp_path, 10, 20, 50, 100, keep={20}, max_kept=max_kept)
    assert steps_in(tmp_path) == left


def test_two_checkpoints_stay_where_there_is_no_best(tmp_path):
    save_all(tmp_path, 1, 2, 3)
    assert steps_in(tmp_path) == [2, 3]


def test_a_damaged_later_step_neither_stays_nor_costs_the_new_one_its_place(tmp_path):
    save_all(tmp_path, 10, 20, 30, max_kept=3)
    for step in (20, 30):
        cut(tmp_path / f"step-{step}" / "model.safetensors")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-10"
    save_all(tmp_path, 15)
    assert steps_in(tmp_path) == [10, 15]


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [cut, flip_last_byte, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, name, damage):
    save_all(tmp_path, 1, 2)
    damage(tmp_path / "step-2" / name)
    with caplog.at_level(logging.WARNING, logger="rlcore.checkpoint"):
        assert latest_checkpoint(tmp_path) == tmp_path / "step-1"
    assert "step-2" in caplog.text
    with pytest.raises(CheckpointError, match="step-2"):
        load_checkpoint(tmp_path / "step-2")


def test_damage_everywhere_is_an_error_and_not_a_fresh_start(tmp_path):
    save_all(tmp_path, 1, 2)
    cut(tmp_path / "step-1" / "state.json")
    (tmp_path / "step-2" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="2 checkpoints, none of them whole"):
        latest_checkpoint(tmp_path)


def test_no_checkpoint_ever_is_a_fresh_start(tmp_path):
    assert latest_checkpoint(tmp_path / "absent") is None
    (tmp_path / ".step-3.tmp").mkdir()
    assert latest_checkpoint(tmp_path) is None


def test_a_missing_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load_checkpoint(tmp_path / "step-9")


def test_leftovers_of_a_kill_go_with_the_next_save(tmp_path):
    leftover = tmp_path / ".step-3.tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    save_all(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    save_all(tmp_path, 3)
    (tmp_path / "step-3").rename(tmp_path / ".step-3.old")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-3"
    assert load_checkpoint(tmp_path / "step-3").state == {"step": 3}


def test_a_step_can_be_saved_again(tmp_path):
    save_all(tmp_path, 3)
    save_checkpoint(tmp_path, 3, WEIGHTS, {"again": True})
    assert load_checkpoint(tmp_path / "step-3").state == {"again": True}
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_refused_and_named(tmp_path, number):
    save_all(tmp_path, 1)
    with pytest.raises(CheckpointError, match="model/weight"):
        save_checkpoint(tmp_path, 2, {"model": {"weight": torch.tensor([1.0, number])}}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_state_that_is_no_json_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match="State of step 2"):
        save_checkpoint(tmp_path, 2, WEIGHTS, {"best": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/abs", "ok/../../evil", "a\0b", "..", "", "a.b", "%2e%2e"])
def test_a_group_name_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(ValueError, match="Group of tensors"):
        save_checkpoint(tmp_path / "run", 1, {name: {}}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_cannot_point_outside_the_folder(tmp_path):
    path = save_checkpoint(tmp_path, 1, WEIGHTS, {})
    (path / "model.safetensors").rename(tmp_path / "model.safetensors")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../model.safetensors"] = manifest["files"].pop("model.safetensors")
    manifest["aliases"] = {"../model": {}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="does not list"):
        load_checkpoint(path)


@pytest.mark.parametrize("options", [{"step": -1}, {"step": 1, "max_kept": 0}])
def test_arguments_out_of_range_are_refused(tmp_path, options):
    with pytest.raises(ConfigError):
        save_checkpoint(tmp_path, tensors={}, state={}, **options)


class _Trap:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_pickle_is_not_read(tmp_path):
    path = save_checkpoint(tmp_path, 1, WEIGHTS, {})
    (path / "model.safetensors").write_bytes(pickle.dumps(_Trap(tmp_path / "marker")))
    (path / "manifest.json").unlink()
    write_manifest(path, 1, {"model": {}})
    with pytest.raises(CheckpointError, match="pickled weights are not read"):
        load_checkpoint(path)
    assert not (tmp_path / "marker").exists()


def wait_status_of_child(work: Callable[[], None]) -> int:
    """Run work in a fork of this process; its wait status. An exception ends it with code 1."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    # a file size limit stops the write half-way, as a full disk does
    save_all(tmp_path, 1)

    def save_beyond_the_limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            save_checkpoint(tmp_path, 2, {"model": {"weight": torch.zeros(10_000)}}, {})
        except OSError as error:
            os._exit(7 if error.errno == errno.EFBIG else 2)

    assert os.waitstatus_to_exitcode(wait_status_of_child(save_beyond_the_limit)) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1"


def test_no_space_left_reaches_the_caller_as_such(tmp_path, monkeypatch):
    save_all(tmp_path, 1)

    def full(*_args, **_options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("rlcore.checkpoint.tensors.save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save_all(tmp_path, 2)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize(("owner", "name"), [(Path, "write_text"), (Path, "rename"), (os, "fsync")])
def test_sigkill_during_a_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, owner, name):
    # the save dies behind the weights (write_text), in the flush (fsync) or before the rename
    save_all(tmp_path, 1)

    def save_until_killed():
        monkeypatch.setattr(owner, name, lambda *_args, **_options: os.kill(os.getpid(), signal.SIGKILL))
        save_checkpoint(tmp_path, 2, {"model": {"weight": torch.zeros(1, 2)}}, {"step": 2})

    assert os.WTERMSIG(wait_status_of_child(save_until_killed)) == signal.SIGKILL
    assert (tmp_path / ".step-2.tmp" / "model.safetensors").exists()
    latest = latest_checkpoint(tmp_path)
    assert latest == tmp_path / "step-1"
    assert torch.equal(load_checkpoint(latest).tensors["model"]["weight"], WEIGHTS["model"]["weight"])


def test_publish_replaces_the_folder_at_the_end(tmp_path):
    destination = tmp_path / "deep" / "model"
    for content in ("first", "second"):
        with publish(destination) as folder:
            (folder / "sub").mkdir()
            (folder / "config.json").touch()
            (folder / "sub" / "file").write_text(content)
            assert not destination.exists() or (destination / "sub" / "file").read_text() == "first"
        assert (destination / "sub" / "file").read_text() == content
    assert [path.name for path in destination.parent.iterdir()] == ["model"]


def test_publish_leaves_the_old_folder_after_an_exception(tmp_path):
    destination = tmp_path / "model"
    destination.mkdir()
    (destination / "config.json").write_text("old")

    def fail():
        with publish(destination) as folder:
            (folder / "config.json").write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert (destination / "config.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_publish_puts_the_old_folder_back_when_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    destination = tmp_path / "model"
    destination.mkdir()
    (destination / "config.json").write_text("old")
    rename = Path.rename

    def rename_unless_new(path, target):
        if path.name == ".model.tmp":
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_unless_new)
    with pytest.raises(OSError, match="No space left"), publish(destination):
        pass
    assert (destination / "config.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_publish_does_not_replace_a_file(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(CheckpointError, match="found a file"), publish(tmp_path / "model"):
        pass


def test_write_tensors_names_what_it_left_out(tmp_path):
    shared = torch.ones(2)
    assert write_tensors(tmp_path / "a.safetensors", {"a": shared, "b": shared}) == {"b": "a"}


def trained_optimizer(kind: type[torch.optim.Optimizer], steps: int, **options):
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, 2, generator=generator)), torch.nn.Parameter(torch.ones(2))]
    optimizer = kind([{"params": [parameters[0]]}, {"params": [parameters[1]], "weight_decay": 0.5}], **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(steps):
        step(optimizer, parameters, generator)
        schedule.step()
    return optimizer, parameters, generator


def step(optimizer, parameters, generator) -> None:
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.AdamW, {"lr": 1e-3, "betas": (0.8, 0.9)}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_an_optimizer_goes_on_bit_for_bit(tmp_path, kind, options):
    optimizer, parameters, generator = trained_optimizer(kind, 3, **options)
    tensors, state = pack_optimizer(optimizer)
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, {"optimizer": tensors}, {"optimizer": state}))
    other, other_parameters, _ = trained_optimizer(kind, 0, **options)
    unpack_optimizer(other, loaded.tensors["optimizer"], loaded.state["optimizer"])
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for mine, theirs in zip(other_parameters, parameters, strict=True):
        mine.data.copy_(theirs.data)
    twin = torch.Generator()
    twin.set_state(generator.get_state())
    step(optimizer, parameters, generator)
    step(other, other_parameters, twin)
    for mine, theirs in zip(other_parameters, parameters, strict=True):
        assert torch.equal(mine, theirs)


def test_an_optimizer_of_another_model_is_refused():
    tensors, state = pack_optimizer(trained_optimizer(torch.optim.AdamW, 1, lr=1e-3)[0])
    fewer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3, 2))])
    with pytest.raises(CheckpointError, match=r"\[1, 1\] parameters a group, expected \[1\]"):
        unpack_optimizer(fewer, tensors, state)
    wider = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(3, 4))]}, {"params": [torch.ones(2)]}])
    with pytest.raises(CheckpointError, match=r"\(3, 2\), expected \(3, 4\)"):
        unpack_optimizer(wider, tensors, state)


def test_the_library_unpickles_nothing():
    sources = sorted(Path(rlcore.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    calls = re.compile(r"torch\.load\(|(import|from) (pickle|dill|joblib|cloudpickle)\b")
    assert [path.name for path in sources if calls.search(path.read_text(encoding="utf-8"))] == []
