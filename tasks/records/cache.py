"""The DVC cache of this machine: the files it keeps by their md5, and the executions of stages that it remembers."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rlcore.errors import DataError
from tasks.records import artifacts
from tasks.records.parameters import read_yaml


@dataclass(frozen=True)
class Execution:
    """What a stage used and made once, as `dvc.lock` and the run cache note it.

    Attributes:
        cmd: what ran.
        deps, outs: path to md5.
        params: name to value.
        sizes: bytes of each of the outs.
        file: where the note stands.
    """

    cmd: str
    deps: Mapping[str, str]
    params: Mapping[str, Any]
    outs: Mapping[str, str]
    sizes: Mapping[str, int]
    file: Path


def cache_folder(root: Path) -> Path:
    """Where DVC keeps the cache of a checkout."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return Path(repo.cache.local.path)


def inner_remotes(root: Path) -> list[Path]:
    """Folders of the remotes that lie within the checkout, which are laid out as a cache is."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        urls = [str(settings["url"]) for settings in repo.config["remote"].values()]
    return [Path(url) / "files" / "md5" for url in urls if Path(url).resolve().is_relative_to(root.resolve())]


def cache_with(md5: str, root: Path) -> Path:
    """The folder of the cache, after bringing a version from the remote if need be.

    Raises:
        DataError: neither cache nor remote has it.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

    with Repo(str(root)) as repo:
        cache = Path(repo.cache.local.path)
        if not cached(cache, md5).is_file():
            try:
                repo.cloud.pull([HashInfo("md5", md5)])
            except DvcException as error:
                raise DataError(f"Version {md5} is not in the DVC cache, and the remote failed: {error}.") from None
    if not cached(cache, md5).is_file():
        raise DataError(f"Version {md5} is neither in the DVC cache nor in the remote. Push it where it was made.")
    return cache


def cached(cache: Path, md5: str) -> Path:
    """Where the cache keeps a file, or the list of a folder's files."""
    return cache / md5[:2] / md5[2:]


def members(cache: Path, md5: str) -> list[tuple[str, str]]:
    """Relative name and md5 of each file of a version; a single file has no name.

    Raises:
        DataError: a name lies outside the folder.
    """
    if not md5.endswith(".dir"):
        return [("", md5)]
    entries = json.loads(cached(cache, md5).read_text(encoding="utf-8"))
    found = [(entry["relpath"], entry["md5"]) for entry in entries]
    for name, _ in found:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"Version {md5} names the file {name!r}, which lies outside its folder. Do not use it.")
    return found


def is_whole(cache: Path, md5: str) -> bool:
    """Whether the cache has a version with all its files; their content is not looked at."""
    return cached(cache, md5).is_file() and all(cached(cache, each).is_file() for _, each in members(cache, md5))


def part_md5(cache: Path, md5: str, inner: str) -> str | None:
    """The md5 of a file or folder within a folder of the cache; None where it is not in it."""
    files = dict(members(cache, md5))
    if inner in files:
        return files[inner]
    below = {name.removeprefix(f"{inner}/"): each for name, each in files.items() if name.startswith(f"{inner}/")}
    if not below:
        return None
    entries = [{"md5": below[name], "relpath": name} for name in sorted(below)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def locked_execution(stage: str, root: Path) -> Execution | None:
    """What `dvc.lock` says of a stage; None where it does not know it."""
    path = root / artifacts.LOCK
    noted = read_yaml(path).get("stages", {}).get(stage) if path.exists() else None
    return None if noted is None else _execution(noted, path)


def remembered(cache: Path, cmd: str | None = None) -> Iterator[Execution]:
    """The executions of the run cache, newest first.

    Args:
        cache: folder of the cache.
        cmd: only those of this command; None means all.
    """
    files = sorted(run_cache(cache).glob("*/*/*"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        if cmd is None or re.search(rf"^cmd: {re.escape(cmd)}$", text, flags=re.MULTILINE):
            try:
                noted = YAML(typ="safe", pure=True).load(text)
            except YAMLError:
                continue
            yield _execution(noted, file)


def run_cache(cache: Path) -> Path:
    """Where DVC remembers executions: beside the folder `files/md5` of its cache."""
    return cache.parent.parent / "runs"


def _execution(noted: Mapping[str, Any], file: Path) -> Execution:
    deps, outs = (
        {entry["path"]: entry["md5"] for entry in noted.get(kind, []) if "md5" in entry} for kind in ("deps", "outs")
    )
    sizes = {entry["path"]: int(entry.get("size", 0)) for entry in noted.get("outs", [])}
    params = {name: value for values in noted.get("params", {}).values() for name, value in values.items()}
    return Execution(str(noted.get("cmd", "")), deps, params, outs, sizes, file)
