"""No run takes the place of what is not its own, loses its checkpoints, or finds at its end that it cannot write."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from rlcore import dpo, ppo, reward
from rlcore.checkpoint import latest_checkpoint, load_checkpoint, publish, save_checkpoint
from rlcore.errors import CheckpointError, ConfigError
from rlcore.run_folder import checkpoint_folder, only_run_in
from rlcore.trl_trainers import sft
from tests.support import trl
from tests.support.ppo import PROMPTS, mean_letter, tiny_config, tiny_trainer

REPORTED: list[int] = []

TRAINERS: dict[str, Callable[[Path], Callable[..., Any]]] = {
    "ppo": lambda start: partial(
        ppo.train,
        tiny_config(model_name=str(start), num_iterations=1),
        datasets.DatasetDict(train=datasets.Dataset.from_dict({"prompt": PROMPTS})),
        reward=mean_letter,
    ),
    "dpo": lambda start: partial(dpo.train, trl.dpo_config(start), trl.split(trl.PAIRS, 8)),
    "reward": lambda start: partial(reward.train, trl.reward_config(start), trl.split(trl.PAIRS, 8)),
    "sft": lambda start: partial(sft.train, trl.sft_config(start), trl.split(trl.DEMONSTRATIONS, 8)),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trl.start_folder(tmp_path_factory.mktemp("start"))


@pytest.fixture(params=TRAINERS)
def train(request: pytest.FixtureRequest, start: Path) -> Callable[..., Any]:
    """A trainer that adds the step of each report to REPORTED."""
    REPORTED.clear()
    return partial(TRAINERS[request.param](start), on_metrics=lambda step, _: REPORTED.append(step))


def thesis(folder: Path) -> Path:
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    return folder


@pytest.mark.parametrize("name", ["", ".", "..", "../.."])
def test_the_working_directory_and_those_above_it_are_not_replaced(tmp_path: Path, monkeypatch, name: str):
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    # not even where it is a model
    for folder in (here, here.parent, tmp_path):
        (folder / "config.json").touch()
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match="the working directory or one above it"), publish(Path(name)):
        pass
    assert (tmp_path / "config.json").exists()
    assert (here / "config.json").exists()


def test_a_folder_with_something_else_is_not_replaced(tmp_path: Path):
    folder = thesis(tmp_path / "thesis")
    with pytest.raises(ConfigError, match="holds neither a model nor a checkpoint"), publish(folder):
        pass
    assert (folder / "thesis.tex").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "manifest.json", None])
def test_a_model_a_checkpoint_and_an_empty_folder_are_replaced(tmp_path: Path, name: str | None):
    folder = tmp_path / "model"
    folder.mkdir()
    if name:
        (folder / name).touch()
    with publish(folder) as draft:
        (draft / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_save_model_leaves_a_thesis_where_it_is(tmp_path: Path):
    folder = thesis(tmp_path / "thesis")
    trainer = tiny_trainer(tiny_config())
    with pytest.raises(ConfigError, match="holds neither"):
        trainer.save_model(folder)
    trainer.close()
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_no_step_is_taken_towards_a_folder_that_must_not_be_replaced(tmp_path: Path, train: Callable[..., Any]):
    folder = thesis(tmp_path / "thesis")
    with pytest.raises(ConfigError, match="holds neither"):
        train(output_dir=folder)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="found a file"):
        train(output_dir=tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(output_dir=tmp_path / "file" / "model")
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(output_dir=tmp_path / "model", resume_dir=tmp_path / "file")
    with pytest.raises(ConfigError, match="one in the other"):
        train(output_dir=tmp_path / "run", resume_dir=tmp_path / "run" / "checkpoints")
    assert max(REPORTED, default=0) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis"]


@pytest.mark.parametrize(
    ("output", "resume"), [("run", "run"), ("run", "run/steps"), ("run/best", "run"), ("a/../b", "b")]
)
def test_a_folder_that_lies_in_the_other_is_refused(tmp_path: Path, output: str, resume: str):
    with pytest.raises(ConfigError, match="one in the other"), checkpoint_folder(tmp_path / resume, tmp_path / output):
        pass


def test_folders_that_share_a_parent_or_the_start_of_a_name_are_apart(tmp_path: Path):
    with checkpoint_folder(tmp_path / "run-steps", tmp_path / "run") as folder:
        assert folder == tmp_path / "run-steps"
    assert [*folder.iterdir()] == []


def test_a_folder_that_nobody_may_write_is_found_at_once(tmp_path: Path):
    # nobody makes a file below /proc, root neither
    for output, resume in ((Path("/proc/self/model"), None), (tmp_path / "model", Path("/proc/self/fdinfo"))):
        with pytest.raises(CheckpointError, match="cannot be written"), checkpoint_folder(resume, output):
            pass


def test_a_run_refuses_the_folder_of_one_that_is_going_on(tmp_path: Path, train: Callable[..., Any]):
    with only_run_in(tmp_path / "steps"), pytest.raises(CheckpointError, match="another run writes here"):
        train(output_dir=tmp_path / "model", resume_dir=tmp_path / "steps")
    assert max(REPORTED, default=0) == 0
    train(output_dir=tmp_path / "model", resume_dir=tmp_path / "steps")


def test_a_trainer_holds_its_folder_until_its_end(tmp_path: Path):
    refused = []

    def report(step: int, metrics: object) -> None:
        with pytest.raises(CheckpointError, match="another run writes here"), only_run_in(tmp_path):
            pass
        refused.append(step)

    trainer = tiny_trainer(tiny_config(num_iterations=1), reward_fn=mean_letter, on_metrics=report)
    trainer.train(PROMPTS, resume_dir=tmp_path)
    trainer.close()
    assert 1 in refused
    with only_run_in(tmp_path):
        pass


HOLD = """
import sys, time
from pathlib import Path
from rlcore.run_folder import only_run_in
with only_run_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_holds_nothing(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="another run writes here"), only_run_in(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with only_run_in(tmp_path):
        pass


def test_no_flipped_bit_of_a_manifest_is_read_as_something_else(tmp_path: Path):
    shared = torch.arange(3.0)
    path = save_checkpoint(tmp_path, 13, {"model": {"a": shared, "b": shared}}, {})
    manifest = path / "manifest.json"
    content = manifest.read_bytes()
    said = json.loads(content)
    for position in range(len(content)):
        manifest.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            continue
        # a blank between two entries may be another one
        assert json.loads(manifest.read_bytes()) == said
        assert (found.step, found.tensors["model"].keys()) == (13, {"a", "b"})


def test_a_manifest_that_is_no_file_or_names_no_step_is_a_damaged_checkpoint(tmp_path: Path):
    path = save_checkpoint(tmp_path, 1, {}, {}) / "manifest.json"
    path.write_text(path.read_text().replace('"step": 1', '"step": "zz"'))
    with pytest.raises(CheckpointError, match="its own sha256"):
        load_checkpoint(path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="the manifest cannot be read"):
        load_checkpoint(path.parent)


@pytest.mark.parametrize("step", ["1", 1.5, True, None])
def test_a_step_that_is_no_whole_number_is_refused(tmp_path: Path, step: Any):
    with pytest.raises(ConfigError, match="expected a whole number"):
        save_checkpoint(tmp_path, step, {}, {})


@pytest.mark.parametrize("value", [[1.0], torch.empty(2, device="meta"), torch.eye(2).to_sparse()])
def test_what_is_no_dense_tensor_is_refused(tmp_path: Path, value: Any):
    with pytest.raises(ConfigError, match="m/x: found .*, expected a dense tensor"):
        save_checkpoint(tmp_path, 1, {"m": {"x": value}}, {})
    assert [*tmp_path.iterdir()] == []


def test_a_complex_nan_is_no_finite_number(tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds NaN"):
        save_checkpoint(tmp_path, 1, {"m": {"x": torch.tensor([complex(0, float("nan"))])}}, {})


def test_a_file_beside_checkpoints_is_none_of_them(tmp_path: Path):
    (tmp_path / "step-7").touch()
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {}, {})
    assert latest_checkpoint(tmp_path) == tmp_path / "step-3"
    with pytest.raises(CheckpointError, match="found a file"):
        latest_checkpoint(tmp_path / "step-7")


def test_a_damaged_step_without_its_manifest_is_written_again(tmp_path: Path):
    (save_checkpoint(tmp_path, 1, {}, {}) / "manifest.json").unlink()
    assert load_checkpoint(save_checkpoint(tmp_path, 1, {}, {"again": 1})).state == {"again": 1}


def test_a_kill_while_old_checkpoints_go_leaves_no_half_one(tmp_path: Path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {}, {})
    rmtree = shutil.rmtree

    def killed(path: Path, **options: Any) -> None:
        if (path / "state.json").exists():
            (path / "state.json").unlink()
            raise KeyboardInterrupt
        rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 3, {}, {}, max_kept=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-3"
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-3"]


def test_a_full_disk_in_a_tokenizer_is_an_os_error(tmp_path: Path, monkeypatch):
    trainer = tiny_trainer(tiny_config())

    def full(*_: object, **__: object) -> None:
        raise Exception("No space left on device (os error 28)")  # noqa: TRY002 - as tokenizers does

    monkeypatch.setattr(type(trainer.tokenizer), "save_pretrained", full)
    with pytest.raises(OSError, match="No space left") as caught:
        trainer.save_model(tmp_path / "model")
    trainer.close()
    assert caught.value.errno == 28
    assert [*tmp_path.iterdir()] == []
