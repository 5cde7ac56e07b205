"""Checkpoints of a trainer and finished model folders: whole or absent, never half, and no pickle.

A checkpoint is a folder `step-<step>` with one `<name>.safetensors` for each group of tensors, `state.json` and
`manifest.json` (size and sha256 of every file, and its own). It is written beside its place, flushed to disk and
renamed. Only one process may write into a folder of checkpoints.
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
from rlcore.health import refuse_non_finite

logger = logging.getLogger(__name__)

_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OURS = ("config.json", "adapter_config.json", "manifest.json")  # of a model, adapters, a checkpoint
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
        _write_manifest(temporary, step, aliases)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder; None where no checkpoint was ever finished.

    Whole means: every file of the manifest is there with its size and sha256. Others are skipped with a warning.

    Raises:
        CheckpointError: it is a file, or none of its checkpoints is whole. A fresh start would hide the loss.
    """
    folder = Path(folder)
    _refuse_file(folder)
    if not folder.is_dir():
        return None
    for old in folder.glob(".step-*.old"):
        _finish_swap(old)
    _remove_unwanted(folder)
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
    """`swapped_in` for a folder that a user named: what is neither model nor checkpoint is not replaced.

    Raises:
        ConfigError, CheckpointError, OSError: see require_replaceable and swapped_in. What was there is untouched.
    """
    require_replaceable(destination)
    with swapped_in(destination) as draft:
        yield draft


def require_replaceable(destination: Path) -> None:
    """Let a folder pass that a model or a checkpoint may take the place of, as it does with everything in the old one.

    Raises:
        ConfigError: it is the working directory or one above it, or holds something and no model or checkpoint.
        CheckpointError: it is a file.
    """
    place = Path(destination).resolve()
    _refuse_file(place)
    if Path.cwd().is_relative_to(place):
        raise ConfigError(
            f"{str(destination)!r}: found the working directory or one above it, which the result would replace. "
            "Name a folder of its own."
        )
    if place.is_dir() and any(place.iterdir()) and not any((place / name).is_file() for name in _OURS):
        raise ConfigError(
            f"{str(destination)!r}: found a folder that holds neither a model nor a checkpoint, which the result would "
            "replace. Name another folder, or move it away."
        )


@contextlib.contextmanager
def swapped_in(destination: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `destination` once everything in it is on disk.

    For folders that are the library's own; `publish` is for others. The old folder stays until then. After an exception
    the new one is removed and `destination` is as it was. A kill between the two renames leaves the old folder as
    `.<name>.old`; the next call puts it back.

    Raises:
        CheckpointError: destination is a file.
        OSError: the disk is full or fails.
    """
    destination = Path(destination).resolve()
    _refuse_file(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    old, temporary = (destination.with_name(f".{destination.name}.{end}") for end in ("old", "tmp"))
    _finish_swap(old)
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        with told_as_os_error(destination):
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
    save_file(kept, path, metadata={"format": "pt", **(metadata or {})})
    return aliases


@contextlib.contextmanager
def told_as_os_error(path: Path) -> Iterator[None]:
    """Make an OSError of what safetensors and tokenizers raise, who name an error of the system in the text alone."""
    try:
        yield
    except Exception as error:
        number = _OS_ERROR.search(str(error))
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


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


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _refuse_file(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path}: found a file, expected a folder or nothing. Move it away.")


def _as_json(step: int, state: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(state), allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"State of step {step}: {error}. Keep text, finite numbers, lists, mappings.") from error


def _write_manifest(folder: Path, step: int, aliases: Mapping[str, Mapping[str, str]]) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    manifest = {"step": step, "files": files, "aliases": aliases}
    text = json.dumps({**manifest, "sha256": _sha256_of(manifest)}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _sha256_of(manifest: Mapping[str, Any]) -> str:
    """Of what a manifest says beside this hash."""
    return hashlib.sha256(json.dumps({**manifest, "sha256": ""}, sort_keys=True).encode()).hexdigest()


def _fault(path: Path) -> str | None:
    """What keeps a checkpoint from being whole; None when nothing does."""
    if not path.is_dir():
        return "found no such folder, expected a checkpoint"
    try:
        manifest = _read_json(path / "manifest.json")
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        groups = {f"{name}.safetensors" for name in manifest["aliases"]}
        own_sha256 = manifest["sha256"]
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        return f"the manifest cannot be read ({error!r})"
    if not all(Path(name).name == name for name in expected) or groups | {"state.json"} != set(expected):
        return "the manifest does not list state.json and the groups of tensors"
    if own_sha256 != _sha256_of(manifest):
        return "the manifest does not have its own sha256"
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
    except (FileNotFoundError, IsADirectoryError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}, expected JSON. Use another checkpoint.") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
