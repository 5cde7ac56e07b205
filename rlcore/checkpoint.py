"""Checkpoints of a trainer and finished model folders: whole or absent, never half, and no pickle.

A checkpoint is a folder `step-<step>` with one `<name>.safetensors` for each group of tensors, `state.json` and
`manifest.json` (size and sha256 of every file). It is written beside its place, flushed to disk and renamed. Only one
process may write into a folder of checkpoints.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OS_ERROR = re.compile(r"os error (\d+)")


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
        ConfigError: a group name is not a plain word, or step or max_kept is out of range. Nothing was written.
        CheckpointError: a tensor holds NaN or infinity, or the state is no JSON. Nothing was written.
        OSError: the disk is full or fails. Earlier checkpoints are untouched.
    """
    if max_kept < 1:
        raise ConfigError(f"max_kept={max_kept}: expected at least 1.")
    folder = Path(folder)
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    destination = folder / f"step-{step}"
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
        ConfigError, CheckpointError, OSError: as in save_checkpoint. What was there is untouched.
    """
    _refuse_bad_arguments(step, tensors)
    for name, group in tensors.items():
        refuse_non_finite(f"Step {step}: {name}", group)
    state_text = _as_json(step, state)
    with publish(destination) as temporary:
        aliases = {name: write_tensors(temporary / f"{name}.safetensors", group) for name, group in tensors.items()}
        (temporary / "state.json").write_text(state_text, encoding="utf-8")
        _write_manifest(temporary, step, aliases)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder; None where no checkpoint was ever finished.

    Whole means: every file of the manifest is there with its size and sha256. Others are skipped with a warning.

    Raises:
        CheckpointError: there are checkpoints and none of them is whole. A fresh start would hide the loss.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return None
    for old in folder.glob(".step-*.old"):
        _finish_swap(old)
    steps = sorted(_steps(folder), reverse=True)
    for step in steps:
        path = folder / f"step-{step}"
        fault = _fault(path)
        if fault is None:
            return path
        logger.warning("Skipped checkpoint %s: %s", path, fault)
    if steps:
        raise CheckpointError(
            f"{folder}: found {len(steps)} checkpoints, none of them whole, expected at least one. "
            "Restore one from a copy, or remove the folder to start anew."
        )
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint that `save_checkpoint` wrote, after checking every file against the manifest.

    Raises:
        CheckpointError: the folder or a file is missing, cut, changed or no safetensors.
    """
    path = Path(path).resolve()
    _finish_swap(path.with_name(f".{path.name}.old"))
    fault = _fault(path)
    if fault is not None:
        raise CheckpointError(f"{path}: {fault}. Use another checkpoint, or remove this one to start anew.")
    manifest = _read_json(path / "manifest.json")
    tensors = {}
    for name, aliases in manifest["aliases"].items():
        group = read_tensors(path / f"{name}.safetensors")
        tensors[name] = group | {alias: group[kept] for alias, kept in aliases.items()}
    return Checkpoint(manifest["step"], tensors, _read_json(path / "state.json"))


@contextlib.contextmanager
def publish(destination: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `destination` once everything in it is on disk.

    The old folder stays until then. After an exception the new one is removed and `destination` is as it was. A kill
    between the two renames leaves the old folder as `.<name>.old`; the next call puts it back.

    Raises:
        CheckpointError: destination is a file.
    """
    destination = Path(destination).resolve()
    if destination.exists() and not destination.is_dir():
        raise CheckpointError(f"{destination}: found a file, expected a folder or nothing. Move it away.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    old, temporary = (destination.with_name(f".{destination.name}.{end}") for end in ("old", "tmp"))
    _finish_swap(old)
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        if destination.exists():
            destination.rename(old)
        temporary.rename(destination)
        sync(destination.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _finish_swap(old)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Write one safetensors file, the metadata in its header. Of tied tensors only the first is written.

    Returns:
        For each name that was left out, the name of the tensor it is one with.

    Raises:
        OSError: the disk is full or fails.
    """
    kept: dict[str, Tensor] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in first_name:
            aliases[name] = first_name[place]
            continue
        first_name[place] = name
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses two tensors that share a storage
        copy = tensor.detach().clone if storage in storages else tensor.detach().contiguous
        kept[name] = copy(memory_format=torch.contiguous_format)
        storages.add(storage)
    try:
        save_file(kept, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    return aliases


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU. No code in it can run.

    Raises:
        CheckpointError: the file is missing or no safetensors.
    """
    try:
        return load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(
            f"{path}: {error}, expected a safetensors file. Write the folder again; pickled weights are not read."
        ) from error


def refuse_non_finite(owner: str, tensors: Mapping[str, Tensor]) -> None:
    """Let tensors pass that hold finite numbers only.

    Raises:
        CheckpointError: one holds NaN or infinity. Names it after its owner.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{owner}/{name} holds NaN or infinity, expected finite numbers, so nothing was written. "
                "The earlier checkpoint is kept; lower the learning rate and resume from it."
            )


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state into tensors and JSON, exactly. `unpack_optimizer` is the inverse."""
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars = {str(index): _split(entries, f"state.{index}.", tensors) for index, entries in packed["state"].items()}
    groups = [_split(group, f"group.{index}.", tensors) for index, group in enumerate(packed["param_groups"])]
    return tensors, {"groups": groups, "scalars": scalars}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Put back what `pack_optimizer` took out of an optimizer over the same parameters.

    Raises:
        CheckpointError: the number of parameters of a group, or the shape of one, is another.
    """
    current = optimizer.state_dict()["param_groups"]
    found = [len(group["params"]) for group in state["groups"]]
    expected = [len(group["params"]) for group in current]
    if found != expected:
        raise CheckpointError(
            f"Optimizer state for {found} parameters a group, expected {expected}. "
            "Resume with the settings the run began with, or start anew."
        )
    groups = [
        {key: tuple(value) if isinstance(current[index].get(key), tuple) else value for key, value in group.items()}
        for index, group in enumerate(state["groups"])
    ]
    entries = {int(index): dict(scalars) for index, scalars in state["scalars"].items()}
    for name, tensor in tensors.items():
        kind, index, key = name.split(".", 2)
        (entries if kind == "state" else groups)[int(index)][key] = tensor.clone()
    _refuse_other_shapes(optimizer, entries)
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _refuse_bad_arguments(step: int, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    if step < 0:
        raise ConfigError(f"step={step}: expected at least 0.")
    for name in tensors:
        if not _ENTRY_NAME.fullmatch(name):
            raise ConfigError(f"Group of tensors {name!r}: expected letters, digits, _ and - only. It names a file.")


def _refuse_other_shapes(optimizer: torch.optim.Optimizer, entries: Mapping[int, Mapping[str, Any]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in entries.items():
        for key, value in entry.items():
            # Optimizers keep a step count, which is a scalar, and moments, which have the parameter's shape.
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise CheckpointError(
                    f"Optimizer state {key} of parameter {index} has shape {tuple(value.shape)}, "
                    f"expected {tuple(parameters[index].shape)}. Resume with the model the run began with."
                )


def _as_json(step: int, state: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(state), allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"State of step {step}: {error}. Keep text, finite numbers, lists, mappings.") from error


def _split(entries: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Move the tensors of entries into `tensors` under the prefix; return the rest."""
    tensors |= {prefix + key: value.detach() for key, value in entries.items() if isinstance(value, Tensor)}
    return {key: value for key, value in entries.items() if not isinstance(value, Tensor)}


def _write_manifest(folder: Path, step: int, aliases: Mapping[str, Mapping[str, str]]) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    text = json.dumps({"step": step, "files": files, "aliases": aliases}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _fault(path: Path) -> str | None:
    """What keeps a checkpoint from being whole; None when nothing does."""
    if not path.is_dir():
        return "found no such folder, expected a checkpoint"
    try:
        manifest = _read_json(path / "manifest.json")
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        groups = {f"{name}.safetensors" for name in manifest["aliases"]}
        int(manifest["step"])
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        return f"the manifest cannot be read ({error!r})"
    if not all(Path(name).name == name for name in expected) or groups | {"state.json"} != set(expected):
        return "the manifest does not list state.json and the groups of tensors"
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, expected {size}"
        if _sha256(file) != digest:
            return f"{name} does not have the sha256 of the manifest"
    return None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}, expected JSON. Use another checkpoint.") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _steps(folder: Path) -> list[int]:
    return [int(match[1]) for path in folder.iterdir() if (match := _STEP_FOLDER.fullmatch(path.name))]


def _remove_old(folder: Path, step: int, keep: Collection[int], max_kept: int) -> None:
    steps = _steps(folder)
    newest = sorted(number for number in steps if number <= step)[-max_kept:]
    for number in set(steps) - set(newest) - set(keep):
        shutil.rmtree(folder / f"step-{number}")


def _finish_swap(old: Path) -> None:
    """Remove what publish put aside, or put it back where nothing took its place."""
    if not old.exists():
        return
    destination = old.with_name(old.name[1 : -len(".old")])
    if destination.exists():
        shutil.rmtree(old)
    else:
        old.rename(destination)


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(parent, name))
        sync(Path(parent))
