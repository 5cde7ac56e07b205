"""The manifest of a checkpoint: size and sha256 of every file, and its own."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore.errors import CheckpointError

logger = logging.getLogger(__name__)


def write_manifest(folder: Path, step: int, aliases: Mapping[str, Mapping[str, str]]) -> None:
    """Write down the files that lie in a folder.

    Args:
        folder: gets `manifest.json`.
        step: of the checkpoint.
        aliases: by group of tensors, what `write_tensors` returned.
    """
    manifest = {"step": step, "files": described(sorted(folder.iterdir())), "aliases": aliases}
    text = json.dumps({**manifest, "sha256": _sha256_of(manifest)}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def described(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and sha256 of files of one folder, by name."""
    return {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def damage_of(folder: Path, expected: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What keeps files from being as they were `described`; None when nothing does."""
    for name, entry in expected.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes, expected {entry['bytes']}"
        if _sha256(file) != entry["sha256"]:
            return f"{name} does not have the sha256 of the manifest"
    return None


def fault_of(path: Path) -> str | None:
    """What keeps a checkpoint from being whole; None when nothing does."""
    if not path.is_dir():
        return "found no such folder, expected a checkpoint"
    try:
        manifest = read_json(path / "manifest.json")
        expected = {name: {key: entry[key] for key in ("bytes", "sha256")} for name, entry in manifest["files"].items()}
        groups = {f"{name}.safetensors" for name in manifest["aliases"]}
        own_sha256 = manifest["sha256"]
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        return f"the manifest cannot be read ({error!r})"
    if not all(Path(name).name == name for name in expected) or groups | {"state.json"} != set(expected):
        return "the manifest does not list state.json and the groups of tensors"
    if own_sha256 != _sha256_of(manifest):
        return "the manifest does not have its own sha256"
    return damage_of(path, expected)


def newest_whole(checkpoints: Sequence[Path], fault_of: Callable[[Path], str | None] = fault_of) -> Path | None:
    """The first checkpoint that is whole; those before it are skipped aloud. None where there is no checkpoint.

    Args:
        checkpoints: of one folder, the newest first.
        fault_of: what keeps one from being whole; None when nothing does.

    Raises:
        CheckpointError: none of them is whole. A fresh start would hide the loss.
    """
    for checkpoint in checkpoints:
        fault = fault_of(checkpoint)
        if fault is None:
            return checkpoint
        logger.warning("Skipped checkpoint %s: %s", checkpoint, fault)
    if checkpoints:
        raise CheckpointError(
            f"{checkpoints[0].parent}: found {len(checkpoints)} checkpoints, none of them whole, expected at least "
            "one. Restore one from a copy, or remove the folder to start anew."
        )
    return None


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        CheckpointError: it is missing or no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}, expected JSON. Use another checkpoint.") from error


def _sha256_of(manifest: Mapping[str, Any]) -> str:
    """Of what a manifest says beside this hash."""
    return hashlib.sha256(json.dumps({**manifest, "sha256": ""}, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
