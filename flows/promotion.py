"""The audit of the champion as a flow: what somebody set in MLflow is seen, verified, written down and announced."""

from typing import Any

from prefect import flow

from tasks.registry.announcements import announce, look


@flow(name="promotion")
def promotion() -> dict[str, Any]:
    """Look whether another version became champion, and announce it once, however it became that.

    Returns:
        The last move of the champion.
    """
    return announce(look())
