"""What a pipeline run made, committed to git on request: the notes by which a clone finds its data and models."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlcore.exit_codes import DONE
from tasks.records import artifacts
from tasks.records.lent_parameters import own_parameters
from tasks.records.versioning import PUBLISHED, commit_of, uncommitted
from tasks.records.wording import first_line

BUSY = "index.lock"
"""In what git says while another git writes the index."""
BUSY_SECONDS = 10.0


def published(root: Path, source: str) -> list[str]:
    """The files that say which data, models and settings belong together, as far as they are there.

    Settings that a run has only borrowed are not among them.

    Args:
        root: the checkout.
        source: folder of the raw data. What `dvc add` noted of it belongs to the run too.
    """
    borrowed = own_parameters(root) != root / artifacts.PARAMS
    names = [name for name in PUBLISHED if not (borrowed and name == str(artifacts.PARAMS))]
    if (root / f"{source}.dvc").exists():
        names += [f"{source}.dvc", str(Path(source).parent / ".gitignore")]
    return [name for name in names if (root / name).exists()]


def commit(root: Path, names: Sequence[str], message: str, note: Callable[[str], None]) -> str | None:
    """Commit these files as they lie there. Whatever else is changed or staged stays as it is.

    A fault fails nothing: the files are there, and can be committed by hand.

    Args:
        root: the checkout.
        names: files, relative to it.
        message: of the commit.
        note: gets a line on what was committed, or on why nothing was.

    Returns:
        The commit; None where there is none.
    """
    if not uncommitted(root, names):
        return None
    new = [name for name in names if _git(root, "ls-files", "--error-unmatch", "--", name)]
    fault = _git(root, "add", "--intent-to-add", "--", *new) if new else None
    fault = fault or _git(root, "commit", "--quiet", "--only", "--message", message, "--", *names)
    if fault:
        if new:
            _git(root, "reset", "--quiet", "--", *new)
        note(f"git: {fault}. Nothing was committed; by hand: git add {' '.join(names)} && git commit")
        return None
    made = commit_of(root)
    note(f"git commit {(made or '')[:12]}: {', '.join(names)}")
    return made


def _git(root: Path, *arguments: str) -> str | None:
    """Run git, again for a while where another git is busy; what is wrong, None where it did it."""
    deadline = time.monotonic() + BUSY_SECONDS
    # Nobody sits there to be asked for a name, a text or a key.
    environment = {**os.environ, "GIT_EDITOR": "true", "GIT_TERMINAL_PROMPT": "0"}
    while True:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == DONE:
            return None
        if BUSY not in done.stderr or time.monotonic() > deadline:
            return _reason(done.stderr or done.stdout)
        time.sleep(0.2)


def _reason(said: str) -> str:
    """What git gives as reason, which it prints after hints."""
    marked = [line for line in said.splitlines() if line.startswith(("fatal:", "error:"))]
    return first_line("\n".join(marked) or said)
