"""Which policy is the champion: promotion, the way back, and the audit of what somebody set elsewhere."""

import getpass
import os
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from rlcore.errors import ConfigError, RLCoreError
from tasks.records import versioning
from tasks.registry import store
from tasks.registry.store import (
    ACTOR_TAG,
    CHALLENGER,
    CHAMPION,
    GATE_TAG,
    MEASURED_AGAINST_TAG,
    NONE,
    OVERRIDE_TAG,
    POLICY_MODEL,
    PREVIOUS_TAG,
    SEEN_TAG,
    VERIFIED_TAG,
    Move,
    PromotionRefused,
    wording,
)
from tasks.serving.packaging import checked_copy, is_pointer

UNKNOWN_ACTOR = "mlflow-ui (unknown)"
"""Who moved an alias that no command of ours moved: MLflow keeps no user."""


def promote(client: MlflowClient, root: Path, name: str | None = None, override: str | None = None) -> Move | None:
    """Make a version the champion.

    Args:
        client: of the registry.
        root: the checkout.
        name: number or alias of the version; by default the challenger.
        override: why a version counts whose gate refused it, or was asked about another champion.

    Returns:
        The move; None where the version is the champion already.

    Raises:
        ConfigError: no such version, or an empty override.
        PromotionRefused: the gate refused it, it was not measured against the champion, or the champion moved
            meanwhile.
        CheckpointError, DataError: its checkpoint is not the one that was measured, or is nowhere.
    """
    if override is not None and not override.strip():
        raise ConfigError('--override: found no text, expected the reason. Write --override "why".')
    audit(client, root)
    reigning = store.number_of(store.champion(client))
    version = store.find_version(client, name or CHALLENGER)
    number = str(version.version)
    if number == reigning:
        return None
    faults = _faults_of_verdict(version, reigning)
    if faults and override is None:
        raise PromotionRefused(
            f"{POLICY_MODEL} version {number}: {faults}. Train a better one with `rlhf pipeline run`, or "
            f'promote it all the same: rlhf promote {number} --override "why".'
        )
    verify_checkpoint(client, version, root)
    move = Move(number, reigning, _actor(), store.now(), faults)
    reason = {OVERRIDE_TAG: override[: store.TEXT_LIMIT]} if faults and override else {}
    store.move_champion(client, version, move, tags={**_audit_tags(move), **reason}, root=root)
    if not reason:
        store.drop_tags(client, version, {OVERRIDE_TAG})
    return move


def rollback(client: MlflowClient, root: Path) -> Move:
    """Make the champion before this one the champion again. Its gate is not asked: it reigned before.

    The version keeps the tag that names its own predecessor, so that the next rollback goes further back.

    Raises:
        ConfigError: there is no champion, or none before it.
        PromotionRefused: the champion moved meanwhile.
        CheckpointError, DataError: the checkpoint is not the one that was measured, or is nowhere.
    """
    audit(client, root)
    reigning = store.champion(client)
    if reigning is None:
        raise ConfigError(f"{POLICY_MODEL} has no champion. Choose one: rlhf promote VERSION.")
    previous = reigning.tags.get(PREVIOUS_TAG, NONE)
    if previous == NONE:
        raise ConfigError(f"Version {reigning.version} is the first champion. Choose another: rlhf promote VERSION.")
    version = store.find_version(client, previous)
    verify_checkpoint(client, version, root)
    move = Move(previous, str(reigning.version), _actor(), store.now(), _refusals(version))
    tags = {**_audit_tags(move), PREVIOUS_TAG: version.tags.get(PREVIOUS_TAG, NONE)}
    store.move_champion(client, version, move, tags=tags, root=root)
    return move


def audit(client: MlflowClient, root: Path) -> Move:
    """Look whether the champion moved without a command of ours, and write down what can be known of it.

    Returns:
        The last move of the champion.
    """
    with store.locked(root):
        last = store.last_move(client)
        version = store.champion(client)
        if store.number_of(version) == last.version:
            return last
        move = _interrupted(client, version, last, root)
        if move is None:
            move = _unknown(client, version, last, root)
            if version is not None:
                store.drop_tags(client, version, {OVERRIDE_TAG})
                store.tag_version(client, version, _audit_tags(move))
        store.note(client, move)
    return move


def verify_checkpoint(client: MlflowClient, version: ModelVersion, root: Path) -> None:
    """Hash the checkpoint of a version again, wherever it lies: in DVC's cache, and as the copy that is served.

    Raises:
        ConfigError: the pipeline did not register the version.
        DataError: DVC does not have it whole.
        CheckpointError: the copy in the registry is damaged or gone.
    """
    md5 = store.checkpoint_md5(version)
    versioning.verify_cached(md5, root)
    if not is_pointer(client, version):
        checked_copy(client, version, md5)


def _faults_of_verdict(version: ModelVersion, reigning: str | None) -> str:
    """Why the gate does not speak for a version while `reigning` is champion; empty where it does."""
    if refusals := _refusals(version):
        return refusals
    measured = version.tags.get(MEASURED_AGAINST_TAG, NONE).rpartition("/")[2]
    if measured == (reigning or NONE):
        return ""
    against = "no champion" if measured == NONE else f"champion {measured}"
    return f"the gate passed it against {against}, but {wording(reigning)} is champion"


def _refusals(version: ModelVersion) -> str:
    if GATE_TAG not in version.tags:
        return "no gate has judged it"
    if version.tags[GATE_TAG] == "true":
        return ""
    reasons = [value for name, value in sorted(version.tags.items()) if name.startswith("gate.") and "refused" in value]
    return f"the gate refused it ({'; '.join(reasons)})"


def _audit_tags(move: Move) -> dict[str, str]:
    return {
        SEEN_TAG: move.seen_at,
        PREVIOUS_TAG: move.previous or NONE,
        ACTOR_TAG: move.actor,
        VERIFIED_TAG: str(move.verified).lower(),
    }


def _interrupted(client: MlflowClient, version: ModelVersion | None, last: Move, root: Path) -> Move | None:
    """The move of a command that was killed between alias and whole note: the tags of the version tell of it."""
    # Its time is that of the note where the kill came just before the note's last tag.
    if version is None or SEEN_TAG not in version.tags or version.tags[SEEN_TAG] < last.seen_at:
        return None
    faults = _joined(_refusals(version), _damage(client, version, root))
    actor = version.tags.get(ACTOR_TAG, UNKNOWN_ACTOR)
    return Move(str(version.version), last.version, actor, version.tags[SEEN_TAG], faults)


def _unknown(client: MlflowClient, version: ModelVersion | None, last: Move, root: Path) -> Move:
    """A move that nobody recorded."""
    if version is None:
        return Move(None, last.version, UNKNOWN_ACTOR, store.now(), f"the alias {CHAMPION} was taken away")
    faults = _joined(_faults_of_verdict(version, last.version), _damage(client, version, root))
    return Move(str(version.version), last.version, UNKNOWN_ACTOR, store.now(), faults)


def _damage(client: MlflowClient, version: ModelVersion, root: Path) -> str:
    """What is wrong with the checkpoint of a version; empty where it is the one that was measured."""
    try:
        verify_checkpoint(client, version, root)
    except RLCoreError as error:
        return str(error)
    return ""


def _joined(*faults: str) -> str:
    return "; ".join(filter(None, faults))


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
