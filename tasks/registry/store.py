"""The registry: versions of the models, and the aliases that say which policy counts.

Aliases are read and set here alone. The champion is moved by compare-and-set under a lock of the checkout. MLflow
keeps no user and no history of an alias, so the last move stands in tags of the registered model: a champion that
differs from them was set by somebody else, such as by a click in its UI.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from rlcore.errors import ConfigError, RLCoreError
from rlcore.exit_codes import FAILED
from tasks.records.artifacts import POLICY_DIR, REWARD_DIR, SFT_DIR, STATE
from tasks.records.processes import held
from tasks.records.tracking import md5_tag

SFT_MODEL, REWARD_MODEL, POLICY_MODEL = "rlhf-sft", "rlhf-reward", "rlhf-policy"
STAGES = {SFT_MODEL: "sft", REWARD_MODEL: "reward", POLICY_MODEL: "policy"}
"""Registered model → the stage that trains it, in the order of training."""
FOLDERS = {SFT_MODEL: SFT_DIR, REWARD_MODEL: REWARD_DIR, POLICY_MODEL: POLICY_DIR}
"""Registered model → where the checkpoint lies that becomes its next version."""
CHAMPION, CHALLENGER = "champion", "challenger"
GATE_TAG = "gate.passed"
CHECKPOINT_TAG = md5_tag(POLICY_DIR)
MEASURED_AGAINST_TAG = "parent.champion"
"""The champion of the evaluation that the gate judged; absent where there was none."""

SEEN_TAG, PREVIOUS_TAG, ACTOR_TAG = "promotion.seen_at", "promotion.previous", "promotion.actor"
VERIFIED_TAG, OVERRIDE_TAG = "promotion.verified", "promotion.override"
LAST_TAG, FAULTS_TAG, ANNOUNCED_TAG = "promotion.champion", "promotion.faults", "promotion.announced"
"""Of the registered model, beside those above: the champion as noted last, what speaks against it, and the time of the
move that was announced last."""
TEXT_LIMIT = 2000
"""Longest text of a tag, in characters."""
NONE = "none"
"""In a tag: no version."""

DESCRIPTION = {
    SFT_MODEL: "Where policies start: models after supervised training. Their weights are kept by DVC.",
    REWARD_MODEL: "What policies were trained against. Their weights are kept by DVC.",
    POLICY_MODEL: "Policies of the pipeline. `challenger` is the latest that passed the gate; a person makes it the "
    "champion with `rlhf promote`, or by setting the alias `champion` on its version.",
}

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


class PromotionRefused(RLCoreError):
    """A version may not become the champion as things are. Nothing was changed."""

    exit_code = FAILED


@dataclass(frozen=True)
class Move:
    """A move of the champion.

    Attributes:
        version: number of the champion; None where the alias was taken away.
        previous: number of the champion before it; None for no champion.
        actor: who moved it.
        seen_at: when, in UTC; empty before the first move.
        faults: why it is not verified; empty where checkpoint and gate are in order.
    """

    version: str | None
    previous: str | None
    actor: str
    seen_at: str
    faults: str = ""

    @property
    def verified(self) -> bool:
        """Whether the gate passed the version and its checkpoint is what was measured."""
        return not self.faults


def champion(client: MlflowClient) -> ModelVersion | None:
    """The policy that counts; None while nobody has chosen one."""
    return _at_alias(client, CHAMPION)


def challenger(client: MlflowClient) -> ModelVersion | None:
    """The latest policy that passed the gate; None while none has."""
    return _at_alias(client, CHALLENGER)


def champion_md5(client: MlflowClient) -> str | None:
    """The DVC md5 of the champion's checkpoint; None while there is no champion.

    Raises:
        ConfigError: the champion is a version that the pipeline did not register.
    """
    version = champion(client)
    return None if version is None else checkpoint_md5(version)


def checkpoint_md5(version: ModelVersion) -> str:
    """The DVC md5 of a policy's checkpoint.

    Raises:
        ConfigError: the pipeline did not register the version.
    """
    if CHECKPOINT_TAG not in version.tags:
        raise ConfigError(
            f"{POLICY_MODEL} version {version.version} has no tag {CHECKPOINT_TAG}: the pipeline did not register it. "
            f"Set the alias `{CHAMPION}` on a version that the pipeline registered."
        )
    return str(version.tags[CHECKPOINT_TAG])


def find_version(client: MlflowClient, name: str) -> ModelVersion:
    """The policy's version with a number or an alias.

    Raises:
        ConfigError: there is none. Says which there are.
    """
    found = numbered(client, POLICY_MODEL, name) if name.isdecimal() else _at_alias(client, name)
    if found is not None:
        return found
    versions = client.search_model_versions(f"name = '{POLICY_MODEL}'")
    known = ", ".join(map(str, sorted((int(version.version) for version in versions), reverse=True)[:10]))
    if not known:
        raise ConfigError(f"{POLICY_MODEL} has no version yet. Run `rlhf pipeline run`.")
    advice = {
        CHALLENGER: f"The gate has passed none. Run `rlhf pipeline run` again, or name one of {known}.",
        CHAMPION: f"Choose one of {known}: rlhf promote VERSION.",
    }
    raise ConfigError(f"{POLICY_MODEL} has no {name!r}. {advice.get(name, f'Name one of {known}, or an alias.')}")


def numbered(client: MlflowClient, model: str, number: str) -> ModelVersion | None:
    """The version with a number; None where there is none."""
    try:
        return client.get_model_version(model, number)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return None


def with_tags(client: MlflowClient, model: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The oldest version that is ready and has all these tags."""
    wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    found = client.search_model_versions(f"name = '{model}' and {wanted}")
    ready = [version for version in found if version.status == "READY"]
    return min(ready, key=lambda version: int(version.version), default=None)


def create_model(client: MlflowClient, model: str) -> None:
    """Make sure that the registered model exists."""
    try:
        client.get_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(model, description=DESCRIPTION[model])


def set_challenger(client: MlflowClient, version: ModelVersion, root: Path) -> None:
    """Set the alias `challenger`."""
    with locked(root):
        client.set_registered_model_alias(POLICY_MODEL, CHALLENGER, version.version)


def move_champion(
    client: MlflowClient, version: ModelVersion, move: Move, *, tags: Mapping[str, str], root: Path
) -> None:
    """Set the alias `champion` if it is still where the move begins, with the tags that tell of it.

    Args:
        client: of the registry.
        version: the new champion.
        move: from where to where.
        tags: of the new champion.
        root: the checkout, whose lock is held meanwhile.

    Raises:
        PromotionRefused: the champion moved meanwhile.
    """
    with locked(root):
        found = number_of(champion(client))
        if found != move.previous:
            raise PromotionRefused(
                f"The champion moved meanwhile: it was {wording(move.previous)} and is {wording(found)}. "
                "Look at it in the registry, and repeat the command if you still want to move it."
            )
        # The alias comes after the tags and before the note: whatever a kill leaves, an audit completes it.
        tag_version(client, version, tags)
        client.set_registered_model_alias(POLICY_MODEL, CHAMPION, version.version)
        note(client, move)


def tag_version(client: MlflowClient, version: ModelVersion, tags: Mapping[str, str]) -> None:
    """Set tags of a version."""
    for name, value in tags.items():
        client.set_model_version_tag(version.name, version.version, name, value)


def drop_tags(client: MlflowClient, version: ModelVersion, names: set[str]) -> None:
    """Remove those of the tags that a version has."""
    for name in sorted(names & set(version.tags)):
        client.delete_model_version_tag(version.name, version.version, name)


def note(client: MlflowClient, move: Move) -> None:
    """Note the last move of the champion; its version comes last and makes the note whole."""
    tags = {
        PREVIOUS_TAG: move.previous or NONE,
        ACTOR_TAG: move.actor,
        FAULTS_TAG: move.faults[:TEXT_LIMIT],
        SEEN_TAG: move.seen_at,
        LAST_TAG: move.version or NONE,
    }
    for name, value in tags.items():
        client.set_registered_model_tag(POLICY_MODEL, name, value)


def last_move(client: MlflowClient) -> Move:
    """The move of the champion that was noted last."""
    tags = _model_tags(client)
    version, previous = (None if (at := tags.get(name, NONE)) == NONE else at for name in (LAST_TAG, PREVIOUS_TAG))
    return Move(version, previous, tags.get(ACTOR_TAG, ""), tags.get(SEEN_TAG, ""), tags.get(FAULTS_TAG, ""))


def is_announced(client: MlflowClient, move: Move) -> bool:
    """Whether somebody said that a move was announced."""
    return _model_tags(client).get(ANNOUNCED_TAG, "") == move.seen_at


def note_announced(client: MlflowClient, move: Move) -> None:
    """Note that a move was announced."""
    client.set_registered_model_tag(POLICY_MODEL, ANNOUNCED_TAG, move.seen_at)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the registry's lock of a checkout."""
    with held(root / STATE / "registry.lock"):
        yield


def number_of(version: ModelVersion | None) -> str | None:
    """Its number as text."""
    return None if version is None else str(version.version)


def wording(number: str | None) -> str:
    """A version in a sentence."""
    return "no version" if number is None else f"version {number}"


def now() -> str:
    """The time in UTC, as ISO 8601; later times sort behind."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _at_alias(client: MlflowClient, alias: str) -> ModelVersion | None:
    try:
        return client.get_model_version_by_alias(POLICY_MODEL, alias)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return None


def _model_tags(client: MlflowClient) -> dict[str, str]:
    try:
        return dict(client.get_registered_model(POLICY_MODEL).tags)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return {}
