"""params.yaml, lent to a comparison and given back: at its end, or after a kill by the next run of the pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.records import artifacts
from tasks.records.parameters import read_yaml


def lend(root: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Note how params.yaml stands.

    Args:
        root: the checkout.
        runs: what it may hold until it is given back.
    """
    text = (root / artifacts.PARAMS).read_text(encoding="utf-8")
    artifacts.write_json(_note(root), {"text": text, "runs": runs})


def give_back(root: Path) -> None:
    """Put params.yaml back as it was lent. Where it holds none of the runs, somebody changed it since: it stays."""
    if not _note(root).exists():
        return
    lent = artifacts.read_json(_note(root))
    path = root / artifacts.PARAMS
    if read_yaml(path) in lent["runs"] and path.read_text(encoding="utf-8") != lent["text"]:
        artifacts.write_text(path, lent["text"])
    _note(root).unlink()


def _note(root: Path) -> Path:
    return root / artifacts.STATE / "lent-parameters.json"
