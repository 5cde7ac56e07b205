"""What git revisions of the checkout say about the versions of data."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rlcore.errors import ConfigError
from tasks.records import artifacts
from tasks.records.versioning import git


def md5_at(revision: str, path: Path, root: Path) -> str:
    """The DVC md5 of a folder of data in a git revision.

    Args:
        revision: a commit, a branch, a tag.
        path: relative to the checkout: what `dvc add` or a stage keeps.
        root: the checkout.

    Raises:
        ConfigError: no such revision, or it does not know the folder.
    """
    if not git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"):
        raise ConfigError(f"Revision {revision!r}: git does not know it. `git log --oneline` lists the revisions.")
    added = _document(git(root, "show", f"{revision}:{path}.dvc")).get("outs", [])
    stages = _document(git(root, "show", f"{revision}:{artifacts.LOCK}")).get("stages", {})
    made = [out for stage in stages.values() for out in stage.get("outs", []) if out.get("path") == str(path)]
    for out in (*added, *made):
        if "md5" in out:
            return str(out["md5"])
    raise ConfigError(
        f"Revision {revision!r} does not know {path}. Commit {path}.dvc after `rlhf data add`, or name another one."
    )


def _document(text: str) -> dict[str, Any]:
    try:
        document = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return {}
    return document if isinstance(document, dict) else {}
