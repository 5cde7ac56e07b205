"""The audit of the champion as a flow: what somebody set in MLflow is seen, verified, written down and announced."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from tasks.registry.announcements import FLOW, QUIET, announce, forget_quiet_looks, look


@flow(name=FLOW)
def promotion() -> dict[str, Any] | State[None]:
    """Look whether another version became champion, and announce it once, however it became that.

    Returns:
        The move of the champion; the state Unchanged where there was none. Of looks that end so the newest is kept.
    """
    move = announce(look())
    if move["announced"]:
        return move
    forget_quiet_looks()
    return Completed(name=QUIET, message="The champion is the one that was announced last.")
