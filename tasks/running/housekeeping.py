"""Room on the disk: what only old pipeline runs need is removed from this machine.

Kept are, whatever their age: what the newest runs used and made; champion, challenger and all their ancestors; the
workspace; and raw data of any time, which no stage can make again. A remote outside the checkout is left alone, so
what was pushed there can be pulled again. A thing goes before the things that it names: whoever is killed half-way
leaves nothing that lacks a part.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from rlcore.errors import ConfigError
from tasks.records import artifacts, tracking, versioning
from tasks.records.cache import (
    cache_folder,
    cached,
    inner_remotes,
    locked_execution,
    members,
    remembered,
    run_cache,
)
from tasks.records.parameters import read_yaml
from tasks.records.processes import held
from tasks.records.tracking import CHECKOUT_TAG, KEY_TAG, Tracker, recording, tagged_md5
from tasks.registry import store
from tasks.serving.packaging import POINTER_TAG, size_of

REMOVED_TAG = "artifacts.removed"
"""Of a run and of a version whose files were removed here."""
MOST_RUNS, MOST_VERSIONS = 50000, 10000
"""More are not asked for at once; MLflow takes no more."""

Records = dict[Run, list[Run]]
"""Pipeline run → runs of its stages."""


@dataclass(frozen=True)
class Removal:
    """One thing to remove.

    Attributes:
        kind: of what it is, for the list.
        name: which one.
        size: in bytes.
        remove: does it; may be repeated.
    """

    kind: str
    name: str
    size: int
    remove: Callable[[], None]


@dataclass
class Needed:
    """What stays.

    Attributes:
        md5: versions of files and folders.
        runs: ids of pipeline runs and of the runs of their stages.
        versions: registered versions as (model, number).
    """

    md5: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    versions: set[tuple[str, str]] = field(default_factory=set)


def collect(root: Path, keep: int, note: Callable[[str], None], *, dry_run: bool) -> list[Removal]:
    """Remove what is not needed, and say what it was; the list of it.

    Args:
        root: the checkout, held meanwhile.
        keep: how many of the newest pipeline runs stay whole; at least 1.
        note: gets a line when a run has to be waited for.
        dry_run: remove nothing.

    Raises:
        ConfigError: too few to keep, a cache that other checkouts share, or a tracking server that knows no run.
    """
    if keep < 1:
        raise ConfigError(f"--keep: found {keep}, expected at least 1, the newest pipeline run.")
    stores = [_own_cache(root), *inner_remotes(root)]
    with (
        held(root / artifacts.RUN_LOCK, lambda owner: note(f"waiting for {owner}")),
        store.locked(root),
        recording(),
    ):
        versioning.prepare(root)
        tracker = Tracker(root)
        records = _records(tracker)
        if not records:
            raise ConfigError(
                f"MLflow at {tracker.uri} knows no pipeline run of this checkout, so nothing says what is needed. "
                "Set MLFLOW_TRACKING_URI to the server of its runs."
            )
        needed = _needed(tracker.client, records, keep, root)
        removals = [
            *_scratch(root),
            *_run_files(tracker, records, needed),
            *_model_files(tracker, records, needed),
            *(removal for store in stores for removal in _executions(store, needed)),
            *(removal for store in stores for removal in _objects(store, _members_of(store, needed.md5))),
        ]
        if not dry_run:
            for removal in removals:
                removal.remove()
    return removals


def _own_cache(root: Path) -> Path:
    cache = cache_folder(root)
    if not cache.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"The DVC cache {cache} lies outside this checkout, so others may use it. "
            "Use `dvc gc` with --projects, which knows several checkouts."
        )
    return cache


def _records(tracker: Tracker) -> Records:
    """The pipeline runs of this checkout with the runs of their stages, newest first."""
    found = tracker.client.search_runs(
        [tracker.experiment_id], order_by=["attributes.start_time DESC"], max_results=MOST_RUNS
    )
    runs = [run for run in found if run.data.tags.get(CHECKOUT_TAG) == tracker.checkout and KEY_TAG in run.data.tags]
    return {run: [each for each in runs if _parent(each) == run.info.run_id] for run in runs if _parent(run) is None}


def _parent(run: Run) -> str | None:
    return run.data.tags.get("mlflow.parentRunId")


def _needed(client: MlflowClient, records: Records, keep: int, root: Path) -> Needed:
    """What stays, by the records of MLflow, by the workspace and by git."""
    needed = Needed()
    for pipeline in list(records)[:keep]:
        _keep_runs(needed, [pipeline, *records[pipeline]])
    for version in _reigning(client):
        needed.versions.add((version.name, str(version.version)))
        needed.md5 |= set(tagged_md5(version.tags).values())
        for pipeline, stages in records.items():
            if version.tags.get(KEY_TAG) == pipeline.data.tags[KEY_TAG]:
                _keep_runs(needed, [pipeline, *stages])
    for stages in records.values():
        needed.md5 |= {md5 for run in stages for path, md5 in tagged_md5(run.data.tags).items() if _is_raw(path)}
    for stage in artifacts.STAGES:
        if (locked := locked_execution(stage, root)) is not None:
            needed.md5 |= {*locked.deps.values(), *locked.outs.values()}
    for note in root.glob("data/**/*.dvc"):
        needed.md5 |= {out["md5"] for out in read_yaml(note).get("outs", []) if "md5" in out}
    needed.md5 |= versioning.noted_in_git(root)
    return needed


def _keep_runs(needed: Needed, runs: Iterable[Run]) -> None:
    for run in runs:
        needed.runs.add(run.info.run_id)
        needed.md5 |= set(tagged_md5(run.data.tags).values())


def _is_raw(path: str) -> bool:
    """Whether a path holds data that no stage makes."""
    return Path(path) != artifacts.RAW and Path(path).is_relative_to(artifacts.RAW.parent)


def _reigning(client: MlflowClient) -> Iterator[ModelVersion]:
    """Versions with an alias, the champion before this one, and what they were made from, over all generations."""
    versions = (version for model in store.FOLDERS for version in _versions(client, model))
    known = {(version.name, str(version.version)): version for version in versions}
    # A list of versions comes without their aliases; the model itself knows them.
    waiting = [
        (model, str(number))
        for model in sorted({name for name, _ in known})
        for number in client.get_registered_model(model).aliases.values()
    ]
    # Where the champion was set in MLflow and nobody looked yet, the noted one is the champion before it.
    last = store.last_move(client)
    waiting += [(store.POLICY_MODEL, number) for number in (last.version, last.previous) if number is not None]
    seen = set()
    while waiting:
        key = waiting.pop()
        # A version that somebody deleted is named by its children, whose tags have its md5 too.
        if key in seen or key not in known:
            continue
        seen.add(key)
        yield known[key]
        for name, value in known[key].tags.items():
            if name.startswith("parent."):
                model, _, number = value.rpartition("/")
                waiting.append((model, number))


def _versions(client: MlflowClient, model: str) -> list[ModelVersion]:
    return list(client.search_model_versions(f"name = '{model}'", max_results=MOST_VERSIONS))


def _members_of(cache: Path, needed: set[str]) -> set[str]:
    """The versions and the files of those that are folders."""
    found = set(needed)
    for md5 in needed:
        if md5.endswith(".dir") and cached(cache, md5).is_file():
            found |= {member for _, member in members(cache, md5)}
    return found


def _scratch(root: Path) -> Iterator[Removal]:
    """States of attempts that nobody resumes: all but the newest of each stage, and none while a run is unfinished."""
    if tracking.unfinished(root) is not None:
        return
    for stage in artifacts.STAGES:
        attempts = sorted((root / artifacts.scratch(stage)).glob("*/"), key=lambda folder: folder.stat().st_mtime)
        for folder in attempts[:-1]:
            name = folder.relative_to(root / artifacts.STATE).as_posix()
            yield Removal("scratch folders", name, size_of(folder), partial(shutil.rmtree, folder, ignore_errors=True))


def _run_files(tracker: Tracker, records: Records, needed: Needed) -> Iterator[Removal]:
    """Files of runs; their metrics, parameters and tags stay."""
    for pipeline, stages in records.items():
        for run in (pipeline, *stages):
            if run.info.run_id not in needed.runs and (files := _Files(run.info.artifact_uri, tracker.uri)).size:

                def remove(run_id: str = run.info.run_id, files: _Files = files) -> None:
                    tracker.client.set_tag(run_id, REMOVED_TAG, "true")
                    files.remove()

                yield Removal("files of runs", f"{run.info.run_name} {run.info.run_id}", files.size, remove)


def _model_files(tracker: Tracker, records: Records, needed: Needed) -> Iterator[Removal]:
    """Weights that MLflow copied for versions; the versions stay, with a tag that says that they cannot be loaded.

    A pointer to DVC has no weights, and stays: what was pushed can be pulled.
    """
    client = tracker.client
    old = {run.info.run_id for pipeline, stages in records.items() for run in (pipeline, *stages)} - needed.runs
    for version in (version for model in store.FOLDERS for version in _versions(client, model)):
        # The registry keeps the model's id in the source alone.
        scheme, _, model_id = (version.source or "").partition(":/")
        if (version.name, str(version.version)) in needed.versions or version.run_id not in old or scheme != "models":
            continue
        logged = client.get_logged_model(model_id)
        if POINTER_TAG in logged.tags or not (files := _Files(logged.artifact_location, tracker.uri)).size:
            continue

        def remove(version: ModelVersion = version, files: _Files = files) -> None:
            store.tag_version(client, version, {REMOVED_TAG: "true"})
            files.remove()

        yield Removal("weights of versions", f"{version.name} version {version.version}", files.size, remove)


class _Files:
    """What MLflow keeps below one address.

    Attributes:
        size: in bytes.
    """

    def __init__(self, location: str, tracking_uri: str):
        self._repository = get_artifact_repository(location, tracking_uri=tracking_uri)
        self.size = self._below(None)

    def remove(self) -> None:
        """Remove all of it."""
        self._repository.delete_artifacts()

    def _below(self, path: str | None) -> int:
        listed = self._repository.list_artifacts(path)
        return sum(self._below(each.path) if each.is_dir else each.file_size or 0 for each in listed)


def _executions(cache: Path, needed: Needed) -> Iterator[Removal]:
    """Executions that the run cache remembers and whose outputs go."""
    trash = run_cache(cache).parent / "forgotten"
    for execution in remembered(cache):
        if set(execution.outs.values()) <= needed.md5:
            continue
        size = execution.file.stat().st_size
        yield Removal("remembered executions", execution.cmd, size, partial(_forget, execution.file, trash))


def _forget(file: Path, trash: Path) -> None:
    """Remove an execution. DVC fails on a folder without one, so the last goes with its folder, in one step."""
    if len(list(file.parent.glob("*"))) > 1:
        file.unlink(missing_ok=True)
    elif file.parent.exists():
        trash.mkdir(exist_ok=True)
        file.parent.rename(trash / file.parent.name)
    shutil.rmtree(trash, ignore_errors=True)


def _objects(cache: Path, needed: set[str]) -> Iterator[Removal]:
    """Files of the cache that nothing needs; lists of folders first."""
    files = sorted(cache.glob("[0-9a-f][0-9a-f]/*"), key=lambda file: not file.name.endswith(".dir"))
    for file in files:
        if file.parent.name + file.name not in needed:
            yield Removal(
                "files of the DVC cache", file.parent.name + file.name, file.stat().st_size,
                partial(file.unlink, missing_ok=True),
            )  # fmt: skip
