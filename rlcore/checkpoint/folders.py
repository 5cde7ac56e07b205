"""Folders that are whole or absent: written beside their place, flushed to disk and renamed."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlcore.errors import CheckpointError, ConfigError

_OURS = ("config.json", "adapter_config.json", "manifest.json")  # of a model, adapters, a checkpoint
_OS_ERROR = re.compile(r"os error (\d+)")


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
    refuse_file(place)
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
    refuse_file(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    old, temporary = (destination.with_name(f".{destination.name}.{end}") for end in ("old", "tmp"))
    finish_swap(old)
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
        finish_swap(old)


def finish_swap(old: Path) -> None:
    """Remove what swapped_in put aside, or put it back where nothing took its place."""
    if not old.exists():
        return
    destination = old.with_name(old.name[1 : -len(".old")])
    if destination.exists():
        shutil.rmtree(old)
    else:
        old.rename(destination)


def refuse_file(path: Path) -> None:
    """Let a folder pass, and a path where nothing is.

    Raises:
        CheckpointError: it is a file.
    """
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path}: found a file, expected a folder or nothing. Move it away.")


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


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(parent, name))
        sync(Path(parent))
