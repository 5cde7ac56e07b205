"""Prefect's view of the champion: looks after the alias, and tells the world of a move."""

from dataclasses import asdict
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.events import emit_event

from tasks.records import artifacts, environment
from tasks.records.tracking import connected, recording
from tasks.registry import store
from tasks.registry.promotion import audit
from tasks.registry.store import POLICY_MODEL, Move

FLOW = "promotion"
QUIET = "Unchanged"
"""State of a look that found nothing new."""
CHAMPION_CHANGED = "rlhf.champion.changed"
"""The event of a move. Its payload: version, previous, actor, seen_at, faults, verified."""


@task(name="look", cache_policy=NO_CACHE)
def look() -> Move:
    """The last move of the champion, written down if nobody did."""
    root = artifacts.find_root()
    environment.apply(root)
    with recording():
        return audit(connected(), root)


@task(name="announce", cache_policy=NO_CACHE)
def announce(move: Move) -> dict[str, Any]:
    """Emit the event of a move that was not announced yet, and warn where the champion is not verified.

    The note that it was announced comes last: after a kill in between it is announced again.

    Returns:
        The move, with `announced`: whether it was news.
    """
    told = {**asdict(move), "verified": move.verified}
    with recording():
        client = connected()
        if store.is_announced(client, move):
            return {**told, "announced": False}
        logger = get_run_logger()
        text = f"{move.actor} moved champion of {POLICY_MODEL} from {store.wording(move.previous)} to "
        text += store.wording(move.version)
        if move.verified:
            logger.info(text)
        else:
            logger.warning(f"{text}, which is not verified: {move.faults}. `rlhf rollback` takes it back.")
        emit_event(
            event=CHAMPION_CHANGED,
            resource={"prefect.resource.id": f"rlhf.model.{POLICY_MODEL}", "prefect.resource.name": POLICY_MODEL},
            payload=told,
        )
        store.note_announced(client, move)
    return {**told, "announced": True}


def forget_quiet_looks() -> None:
    """Delete the earlier runs that found nothing new. Prefect's list would be full of them within a day."""
    quiet = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=[QUIET])))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])), flow_run_filter=quiet
        ):
            client.delete_flow_run(run.id)
