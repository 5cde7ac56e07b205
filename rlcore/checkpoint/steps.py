"""The checkpoints of a run: one folder for each step, of which the newest whole one is taken up."""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.checkpoint.folders import finish_swap, publish, refuse_file
from rlcore.checkpoint.manifest import fault_of, newest_whole, read_json, write_manifest
from rlcore.checkpoint.tensors import read_tensors, write_tensors
from rlcore.errors import CheckpointError, ConfigError
from rlcore.health import refuse_non_finite

_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Checkpoint:
    """What `load_checkpoint` found: tensors on the CPU by group and name, and the JSON state."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, object],
    *,
    keep: Collection[int] = (),
    max_kept: int = 2,
) -> Path:
    """Write `<folder>/step-<step>` and remove what is no longer needed.

    The newest `max_kept` steps up to this one and those in `keep` (the best one) stay. Steps after this one can only be
    damaged ones that the run did not resume from; they go. Tensors that are one and the same (tied weights) are stored
    once and are one tensor again after loading; other views of a storage become copies.

    Args:
        folder: holds the checkpoints of one run.
        step: names the checkpoint, at least 0.
        tensors: groups such as `model` and `optimizer`, each with its tensors by name.
        state: plain JSON; a non-finite number is refused.
        keep: steps that are never removed.
        max_kept: how many of the newest stay, at least 1.

    Raises:
        ConfigError: a group's name is no plain word, a value no dense tensor, step or max_kept not as above.
        CheckpointError: a tensor holds NaN or infinity, or the state is no JSON. Nothing was written.
        OSError: the disk is full or fails. Earlier checkpoints are untouched.
    """
    if max_kept < 1:
        raise ConfigError(f"max_kept={max_kept}: expected at least 1.")
    folder = Path(folder)
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    destination = folder / f"step-{step}"
    if destination.is_dir() and not (destination / "manifest.json").is_file():
        # Damaged, and without the file that tells publish() what it is.
        _remove_step(folder, step)
    write_checkpoint(destination, step, tensors, state)
    _remove_old(folder, step, keep, max_kept)
    return destination


def write_checkpoint(
    destination: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, object]
) -> None:
    """Write one checkpoint at this very path, in place of one that is there; `load_checkpoint` reads it.

    Args:
        destination: the folder to write.
        step, tensors, state: as in save_checkpoint.

    Raises:
        ConfigError, CheckpointError, OSError: see save_checkpoint and publish. What was there is untouched.
    """
    _refuse_bad_arguments(step, tensors)
    for name, group in tensors.items():
        refuse_non_finite(f"Step {step}: {name}", group)
    state_text = _as_json(step, state)
    with publish(destination) as temporary:
        aliases = {name: write_tensors(temporary / f"{name}.safetensors", group) for name, group in tensors.items()}
        (temporary / "state.json").write_text(state_text, encoding="utf-8")
        write_manifest(temporary, step, aliases)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder; None where no checkpoint was ever finished.

    Whole means: every file of the manifest is there with its size and sha256. Others are skipped with a warning.

    Raises:
        CheckpointError: it is a file, or none of its checkpoints is whole. A fresh start would hide the loss.
    """
    folder = Path(folder)
    refuse_file(folder)
    if not folder.is_dir():
        return None
    for old in folder.glob(".step-*.old"):
        finish_swap(old)
    _remove_unwanted(folder)
    return newest_whole([folder / f"step-{step}" for step in sorted(_steps(folder), reverse=True)])


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint that `save_checkpoint` wrote, after checking every file against the manifest.

    Raises:
        CheckpointError: the folder or a file is missing, cut, changed or no safetensors.
    """
    path = Path(path).resolve()
    finish_swap(path.with_name(f".{path.name}.old"))
    fault = fault_of(path)
    if fault is not None:
        raise CheckpointError(f"{path}: {fault}. Use another checkpoint, or remove this one to start anew.")
    manifest = read_json(path / "manifest.json")
    tensors = {}
    for name, aliases in manifest["aliases"].items():
        group = read_tensors(path / f"{name}.safetensors")
        tensors[name] = group | {alias: group[kept] for alias, kept in aliases.items()}
    return Checkpoint(manifest["step"], tensors, read_json(path / "state.json"))


def _refuse_bad_arguments(step: int, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    if type(step) is not int or step < 0:
        raise ConfigError(f"step={step!r}: expected a whole number, at least 0.")
    for group, entries in tensors.items():
        if not _ENTRY_NAME.fullmatch(group):
            raise ConfigError(f"Group of tensors {group!r}: expected letters, digits, _ and - only. It names a file.")
        for name, value in entries.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
                kind = f"{value.layout} on {value.device}" if isinstance(value, Tensor) else type(value).__name__
                raise ConfigError(f"{group}/{name}: found {kind}, expected a dense tensor with numbers in it.")


def _as_json(step: int, state: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(state), allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"State of step {step}: {error}. Keep text, finite numbers, lists, mappings.") from error


def _steps(folder: Path) -> list[int]:
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return [int(match[1]) for name in names if (match := _STEP_FOLDER.fullmatch(name))]


def _remove_old(folder: Path, step: int, keep: Collection[int], max_kept: int) -> None:
    steps = _steps(folder)
    newest = sorted(number for number in steps if number <= step)[-max_kept:]
    for number in set(steps) - set(newest) - set(keep):
        _remove_step(folder, number)


def _remove_step(folder: Path, step: int) -> None:
    """Remove a checkpoint, renamed first: a kill leaves no half one under a name that counts."""
    _remove_unwanted(folder)
    (folder / f"step-{step}").rename(folder / f".step-{step}.unwanted")
    _remove_unwanted(folder)


def _remove_unwanted(folder: Path) -> None:
    for path in folder.glob(".step-*.unwanted"):
        shutil.rmtree(path, ignore_errors=True)
