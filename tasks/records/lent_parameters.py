"""params.yaml, lent to runs with settings that are not to stay, and given back: at their end, or by the next run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError
from tasks.records import artifacts
from tasks.records.parameters import read_yaml

COPY = artifacts.STATE / "lent-parameters.yaml"
"""params.yaml as its owner left it."""
RUNS = artifacts.STATE / "lent-parameters.json"
"""What the file may hold until it is given back; without this note it is not lent."""


def lend(root: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Keep a copy of params.yaml as it stands.

    Args:
        root: the checkout.
        runs: what it may hold until it is given back.
    """
    artifacts.write_text(root / COPY, _text(root / artifacts.PARAMS))
    artifacts.write_json(root / RUNS, runs)


@contextmanager
def lent(root: Path, runs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """params.yaml is lent within the block, and given back at its end, however it comes.

    Args:
        root: the checkout.
        runs: as of lend.
    """
    lend(root, runs)
    try:
        yield
    finally:
        # Where somebody changed the file, the next command says so: what ends here has other news.
        with suppress(ConfigError):
            give_back(root)


def own_parameters(root: Path) -> Path:
    """The file with the owner's settings: the copy as long as params.yaml holds a run that it was lent to."""
    return root / COPY if _holds_a_run(root) else root / artifacts.PARAMS


def restore(root: Path) -> None:
    """Put params.yaml back as it was lent, byte for byte; it stays lent.

    Raises:
        ConfigError: somebody changed it since. It stays as it is, and so does the copy.
    """
    path = root / artifacts.PARAMS
    if _holds_a_run(root):
        artifacts.write_text(path, _text(root / COPY))
    elif (root / RUNS).exists() and _text(path) != _text(root / COPY):
        raise ConfigError(
            f"{artifacts.PARAMS} was changed while a run had borrowed it. Keep it with `rm {RUNS}`, "
            f"or take back what stood there before with `cp {COPY} {artifacts.PARAMS}`; then run again."
        )


def give_back(root: Path) -> None:
    """Put params.yaml back as it was lent; nothing where it is not.

    Raises:
        ConfigError: as for restore.
    """
    restore(root)
    (root / RUNS).unlink(missing_ok=True)
    (root / COPY).unlink(missing_ok=True)


def _holds_a_run(root: Path) -> bool:
    return (root / RUNS).exists() and read_yaml(root / artifacts.PARAMS) in artifacts.read_json(root / RUNS)


def _text(path: Path) -> str:
    """A text with its line ends as they are."""
    return path.read_bytes().decode("utf-8")
