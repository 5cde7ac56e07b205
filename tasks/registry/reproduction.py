"""Training a version again: the same commit, settings and data must give the same checkpoint, to the bit."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from rlcore.errors import ConfigError, DataError
from tasks.records import artifacts, versioning
from tasks.records.artifacts import CHAMPION_DIR, DATA, PARAMS
from tasks.records.clone import clone_at, environment_of
from tasks.records.folders import SETTINGS
from tasks.records.parameters import read_yaml
from tasks.records.processes import held
from tasks.records.tracking import SHOWN_VERSIONS, md5_tag
from tasks.records.wording import first_line
from tasks.registry.registration import COMMIT_TAG, UNCOMMITTED_TAG
from tasks.registry.store import FOLDERS, POLICY_MODEL, checkpoint_md5, find_version

STAGES = ("validate", "sft", "reward", "policy")
"""What makes a policy of raw data."""


@dataclass(frozen=True)
class Reproduction:
    """How a repetition came out.

    Attributes:
        version: number of the version.
        same: whether the checkpoint has the same md5.
        found, expected: md5 of the checkpoints.
        hints: what may explain a difference.
        folder: the clone, which is kept where the checkpoints differ.
    """

    version: str
    same: bool
    found: str
    expected: str
    hints: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        if self.same:
            return f"{POLICY_MODEL} version {self.version} is reproduced: the checkpoint is {self.found} again."
        lines = [
            f"{POLICY_MODEL} version {self.version} is not reproduced: the checkpoint is {self.found}, expected "
            f"{self.expected}.",
            *self.hints,
            f"The repetition lies in {self.folder}.",
        ]
        return "\n".join(lines)


def reproduce(client: MlflowClient, root: Path, name: str, say: Callable[[str], None]) -> Reproduction:
    """Train a version again in a clone of the repository, with an empty DVC cache, and compare the checkpoints.

    The clone has the version's number; whoever repeats the same version meanwhile waits.

    Args:
        client: of the registry.
        root: the checkout; its DVC cache gives the data.
        name: number or alias of the version.
        say: told of each step.

    Raises:
        ConfigError: no such version, or its code is in no commit.
        DataError: settings or data of the version are gone.
        StageFailed: a stage failed; the clone with its logs is kept.
    """
    version = find_version(client, name)
    expected = checkpoint_md5(version)
    commit = _commit(version)
    folder = root / artifacts.STATE / "reproductions" / str(version.version)
    settings = _settings_file(client, version)
    with held(folder.with_name(f"{folder.name}.lock"), lambda owner: say(f"waiting for {owner}")):
        versioning.end_leftover(folder)
        clone_at(commit, root, folder)
        artifacts.write_text(folder / PARAMS, settings)
        _place_inputs(version.tags, read_yaml(folder / PARAMS), root, folder)
        _train(commit, folder, say)
        found = {model: artifacts.content_md5(folder / path) for model, path in FOLDERS.items()}
        same = found[POLICY_MODEL] == expected
        hints = () if same else tuple(_hints(client, version, found))
        if same:
            shutil.rmtree(folder)
    return Reproduction(str(version.version), same, found[POLICY_MODEL], expected, hints, folder)


def _train(commit: str, folder: Path, say: Callable[[str], None]) -> None:
    for stage in STAGES:
        say(f"{stage}, at commit {commit[:12]}")
        try:
            versioning.reproduce(stage, root=folder, environment=environment_of(folder))
        except versioning.StageFailed as error:
            raise versioning.StageFailed(f"{error} The repetition lies in {folder}.", error.exit_code) from None


def _commit(version: ModelVersion) -> str:
    commit = version.tags.get(COMMIT_TAG)
    what = f"{POLICY_MODEL} version {version.version}"
    if commit is None:
        raise ConfigError(f"{what} was registered outside of git, so its code is not known. Train in a git repository.")
    if changed := version.tags.get(UNCOMMITTED_TAG):
        raise ConfigError(
            f"{what} was trained from files that commit {commit} does not have: {changed}. It cannot be reproduced; "
            "commit before you train."
        )
    return str(commit)


def _settings_file(client: MlflowClient, version: ModelVersion) -> str:
    """The params.yaml of the version's run."""
    try:
        uri = f"runs:/{version.run_id}/{PARAMS}"
        path = mlflow.artifacts.download_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri)
        return Path(path).read_text(encoding="utf-8")
    except (MlflowException, OSError) as error:
        raise DataError(
            f"{POLICY_MODEL} version {version.version}: its settings, {PARAMS} of run {version.run_id}, are gone "
            f"({first_line(str(error))}). Restore the artifacts of the run."
        ) from None


def _place_inputs(tags: Mapping[str, str], settings: Mapping[str, Any], root: Path, folder: Path) -> None:
    """Put into the clone what no stage of it makes: raw data, the champion, folders that settings name."""
    source = Path(settings["validate"]["source"])
    versioning.materialise(_md5_of(source, tags), folder / source, root)
    named = {section.get(name) for section in settings.values() if isinstance(section, Mapping) for name in SETTINGS}
    for name in sorted(value for value in named if isinstance(value, str)):
        path = Path(name)
        if path == CHAMPION_DIR:
            versioning.materialise(_md5_of(path, tags), folder / path, root)
        elif (root / path).is_dir() and not path.is_relative_to(DATA) and not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to((root / path).resolve(), target_is_directory=True)


def _md5_of(path: Path, tags: Mapping[str, str]) -> str:
    md5 = tags.get(md5_tag(path))
    if md5 is None:
        raise DataError(
            f"The content of {path} was not kept by DVC: only what lies below {DATA} is. Add it with `rlhf data add`."
        )
    return md5


def _hints(client: MlflowClient, version: ModelVersion, found: Mapping[str, str]) -> list[str]:
    """Where the two trainings part, and which packages are not those of the run."""
    hints = []
    for model, path in FOLDERS.items():
        before = version.tags.get(md5_tag(path))
        if before is not None and before != found[model]:
            hints.append(f"The first that differs is {path}: {found[model]}, expected {before}.")
            break
    tags = client.get_run(str(version.run_id)).data.tags
    for name in SHOWN_VERSIONS:
        before, installed = tags.get(f"version.{name}"), metadata.version(name)
        if before is not None and before != installed:
            hints.append(f"{name} is {installed}; the version was trained with {before}.")
    return hints
