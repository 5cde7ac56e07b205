"""What a stage may use of this machine: GPUs, and time.

A GPU belongs to the stage that holds its lock file; the kernel frees it when the process ends, however it ends. On a
Prefect server that outlives the run, the stage takes slots of the machine's limit there too, so that people see who has
the GPUs and can lower their number. A killed run's slots come back when its lease is over.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from rlcore.configs import StageResources
from rlcore.errors import ConfigError
from rlcore.exit_codes import TRANSIENT
from tasks.records.processes import held_some
from tasks.records.versioning import StageFailed
from tasks.service.servers import has_temporary_server

VISIBLE = "CUDA_VISIBLE_DEVICES"
LEASE_SECONDS = 60.0
"""How long the slots of a killed run stay taken; the least that Prefect takes."""


class TimedOut(StageFailed):
    """A stage took longer than it may. It is not repeated by itself; the next run goes on from its checkpoint."""

    def __init__(self, stage: str, minutes: float):
        super().__init__(
            f"{stage}: ended after its limit of {minutes:g} min (resources.{stage}.timeout_minutes). Its last "
            "checkpoint is kept: run again to go on from it, or raise the limit.",
            TRANSIENT,
        )


@contextmanager
def holding(stage: str, resources: StageResources, note: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Hold what a stage needs, after waiting for it; environment variables for its process.

    Args:
        stage: name, for messages.
        resources: what it may use.
        note: is told once if the stage has to wait.

    Raises:
        ConfigError: it asks for more GPUs than the machine, or its limit on the server, has.
    """
    present = gpus()
    wanted = resources.gpus if present else 0
    if wanted > len(present):
        raise ConfigError(
            f"resources.{stage}.gpus: found {wanted}, expected at most {len(present)}, which this machine has. "
            "Lower it."
        )
    if not wanted:
        yield {VISIBLE: ""} if present else {}
        return
    folder = Path(tempfile.gettempdir())
    locks = {folder / f"rlhf-{os.getuid()}-{gpu}.lock": gpu for gpu in present}
    with (
        _slots(stage, wanted, note),
        held_some(list(locks), wanted, lambda owner: note(f"{stage} waits for a GPU, which {owner} uses")) as taken,
    ):
        yield {VISIBLE: ",".join(locks[lock] for lock in taken)}


def deadline(stage: str, resources: StageResources) -> Callable[[], None]:
    """A function that raises TimedOut once the stage, beginning at this call, took longer than it may."""
    minutes = resources.timeout_minutes
    end = time.monotonic() + minutes * 60 if minutes is not None else float("inf")

    def check() -> None:
        if minutes is not None and time.monotonic() > end:
            raise TimedOut(stage, minutes)

    return check


def gpus() -> list[str]:
    """The GPUs of this machine that the environment lets us see, by their UUID."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    lines = said.stdout.splitlines() if said.returncode == 0 else []
    uuids = {index.strip(): uuid.strip() for index, comma, uuid in (line.partition(",") for line in lines) if comma}
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return list(uuids.values())
    named = [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [uuids.get(name, name) for name in named]


def limit_name() -> str:
    """Of this machine's GPUs, on a Prefect server."""
    return f"rlhf-gpu-{socket.gethostname()}"


def ensure_limit(client: SyncPrefectClient) -> None:
    """Give the server this machine's limit, a slot for each GPU, where it has none yet. A changed one stays."""
    if not (present := gpus()):
        return
    try:
        client.read_global_concurrency_limit_by_name(limit_name())
    except ObjectNotFound:
        limit = GlobalConcurrencyLimitCreate(name=limit_name(), limit=len(present), active=True)
        client.create_global_concurrency_limit(limit)


@contextmanager
def _slots(stage: str, count: int, note: Callable[[str], None]) -> Iterator[None]:
    """Hold slots of this machine's limit on a server that others use too."""
    if has_temporary_server():
        yield
        return
    with get_client(sync_client=True) as client:
        ensure_limit(client)
    with ExitStack() as held:
        try:
            held.enter_context(_attempt(count, max_retries=0))
        except ConcurrencySlotAcquisitionError as error:
            _check_status(error, stage, count)
            note(f"{stage} waits for a slot of the limit {limit_name()}")
            held.enter_context(_attempt(count, max_retries=None))
        yield


def _attempt(count: int, max_retries: int | None) -> AbstractContextManager[None]:
    return concurrency(
        limit_name(),
        occupy=count,
        max_retries=max_retries,
        lease_duration=LEASE_SECONDS,
        strict=True,
        # The GPUs are locked as well: a server that is away for a while must not end a training.
        raise_on_lease_renewal_failure=False,
    )


def _check_status(error: ConcurrencySlotAcquisitionError, stage: str, count: int) -> None:
    """Pass what waiting mends: all slots are taken."""
    cause = error.__cause__
    status = cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else None
    if status == httpx.codes.UNPROCESSABLE_ENTITY:
        raise ConfigError(
            f"resources.{stage}.gpus: found {count}, expected no more than the limit {limit_name()} on the Prefect "
            f"server has. Raise it with `prefect gcl update {limit_name()} --limit {count}`."
        ) from None
    if status != httpx.codes.LOCKED:
        raise error
