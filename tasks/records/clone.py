"""A clone of the checkout at one of its commits, with a DVC cache of its own."""

import os
import shutil
import subprocess
from pathlib import Path

from rlcore.errors import ConfigError
from tasks.records import artifacts


def clone_at(commit: str, root: Path, target: Path) -> None:
    """Clone the repository of a checkout and check out a commit. Nothing of the checkout is shared but git's objects.

    Args:
        commit: its whole name.
        root: the checkout.
        target: the new folder; what lies there is removed.

    Raises:
        ConfigError: the repository does not have the commit.
    """
    if not _git(root, "cat-file", "-e", f"{commit}^{{commit}}"):
        raise ConfigError(f"Commit {commit} is not in the repository of {root}. Fetch it: git fetch origin {commit}.")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    done = _git(root, "clone", "--quiet", "--no-checkout", ".", str(target))
    if not (done and _git(target, "checkout", "--quiet", "--detach", commit)):
        raise ConfigError(f"git could not clone {root} into {target}. See that there is room, and repeat the command.")
    # What DVC knows of earlier runs would take the place of running.
    (target / artifacts.LOCK).unlink(missing_ok=True)


def environment_of(clone: Path) -> dict[str, str]:
    """For the stages of a clone: its code, not the one that is installed; its own notes of DVC."""
    state = clone / artifacts.STATE / "dvc"
    return {**os.environ, "PYTHONPATH": str(clone), "DVC_SITE_CACHE_DIR": str(state)}


def _git(folder: Path, *arguments: str) -> bool:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0
