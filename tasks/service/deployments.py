"""What a Prefect server has to know of a checkout: work pool, limits, deployments, and which flow runs are over.

Import it late, and with PREFECT_API_URL set: Prefect takes seconds to load and reads its settings while it does.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from prefect import cli
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkerFilter,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import Event, Resource
from prefect.events.clients import get_events_client
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Cancelling, Crashed

from tasks.records import artifacts
from tasks.records.processes import end_process
from tasks.service.notifications import WEBHOOK_VARIABLE, set_up_notifications
from tasks.service.resources import ensure_limit
from tasks.service.servers import ServerFailed
from tasks.service.services import POOL

FILE = Path("infra/prefect.yaml")
DATA_ADDED = "rlhf.data.added"
"""Event: a data set has new rows. `infra/prefect.yaml` names it too."""
LOG = artifacts.LOGS / "deploy.log"
CANCEL_SECONDS = 90.0
"""What a cancelled run gets until its worker has ended it."""
BEGUN = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def set_up(root: Path) -> list[str]:
    """Create what the server lacks, and deploy what `infra/prefect.yaml` names; the names of the deployments.

    Repeated, it changes nothing: pauses and schedules that somebody set on the server stay.

    Raises:
        ServerFailed: Prefect refused a deployment.
    """
    with get_client(sync_client=True) as client:
        _ensure_pool(client)
        ensure_limit(client)
        before = {deployment.id: deployment for deployment in _deployments(client)}
        _deploy(root)
        deployments = _deployments(client)
        for deployment in deployments:
            if deployment.id in before:
                _keep_choices(client, before[deployment.id], deployment)
        flows = {deployment.flow_id: client.read_flow(deployment.flow_id).name for deployment in deployments}
        set_up_notifications(client, os.environ.get(WEBHOOK_VARIABLE))
    return sorted(f"{flows[deployment.flow_id]}/{deployment.name}" for deployment in deployments)


def worker_is_online(name: str) -> bool:
    """Whether the pool has heard of a worker lately."""
    online = WorkerFilter.model_validate({"status": {"any_": ["ONLINE"]}})
    with get_client(sync_client=True) as client:
        return any(worker.name == name for worker in client.read_workers_for_work_pool(POOL, worker_filter=online))


def mark_lost_runs() -> list[str]:
    """Runs whose process is gone count as crashed; their names. A run that waits for one of them can start.

    For a server whose workers are all on this machine, and stand.
    """
    with get_client(sync_client=True) as client:
        return _mark_crashed(client, [run for run in _begun(client) if not _lives(run)])


def end_begun_runs() -> list[str]:
    """End every run that has begun, and let it count as crashed; their names. Each keeps its last checkpoint.

    For a server whose workers are gone: such a run could be neither cancelled nor reported.
    """
    with get_client(sync_client=True) as client:
        begun = _begun(client)
        for run in begun:
            _end(run)
        return _mark_crashed(client, begun)


def announce_data(folder: str, md5: str, rows: int) -> None:
    """Emit the event on which the deployment retraining/nightly starts, and wait until the server has it."""

    async def emit() -> None:
        resource = {"prefect.resource.id": f"rlhf.data.{Path(folder).name}"}
        payload = {"path": folder, "md5": md5, "rows": rows}
        async with get_events_client(checkpoint_every=1) as client:
            await client.emit(Event(event=DATA_ADDED, resource=Resource(resource), payload=payload))

    asyncio.run(emit())


def cancel_runs(note: Callable[[str], None]) -> None:
    """Cancel every run that a worker of the pool has begun, and wait until it is over.

    Args:
        note: is told what happens.
    """
    with get_client(sync_client=True) as client:
        runs = _begun(client)
        for run in runs:
            note(f"cancelling the run {run.name}")
            cancelling: State[None] = Cancelling(message="`rlhf down` asked for it.")
            client.set_flow_run_state(run.id, cancelling, force=True)
        deadline = time.monotonic() + CANCEL_SECONDS
        while runs and any(_begun(client)) and time.monotonic() < deadline:
            time.sleep(0.5)


def _begun(client: SyncPrefectClient) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=BEGUN))),
        work_pool_filter=_pool(),
    )


def _mark_crashed(client: SyncPrefectClient, runs: list[FlowRun]) -> list[str]:
    for run in runs:
        client.set_flow_run_state(run.id, Crashed(message="Its process is gone."), force=True)
    return [run.name for run in runs]


def _lives(run: FlowRun) -> bool:
    """Whether a run has a process on this machine, or may get one: a worker has just taken it."""
    process = run.infrastructure_pid or ""
    return not process.isdigit() or _is_flow(process)


def _end(run: FlowRun) -> None:
    """End the process of a run, if it has one on this machine."""
    process = run.infrastructure_pid or ""
    if process.isdigit() and _is_flow(process):
        end_process(int(process))


def _is_flow(process: str) -> bool:
    """Whether a process runs a flow; a later one with its id does not."""
    try:
        return b"prefect" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    except ObjectAlreadyExists:
        return


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return client.read_deployments(work_pool_filter=_pool(), deployment_filter=DeploymentFilter())


def _pool() -> WorkPoolFilter:
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))


def _deploy(root: Path) -> None:
    """`prefect deploy --all` within this process, as loading Prefect once more takes longer than all the rest."""
    log = root / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["--no-prompt", "deploy", "--prefect-file", str(FILE), "--all"]
    with (
        log.open("w", encoding="utf-8") as output,
        redirect_stdout(output),
        redirect_stderr(output),
        _called(root, arguments),
    ):
        try:
            cli.app()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise ServerFailed(f"Prefect refused the deployments of {FILE}. See {log}.") from None


@contextmanager
def _called(root: Path, arguments: Iterable[str]) -> Iterator[None]:
    """As if Prefect's command line had been called in the checkout."""
    before, working_directory = sys.argv, os.environ.get("PWD", "")
    sys.argv = ["prefect", *arguments]
    # infra/prefect.yaml takes the checkout's folder from it.
    os.environ["PWD"] = str(root)
    try:
        yield
    finally:
        sys.argv = before
        os.environ["PWD"] = working_directory


def _keep_choices(client: SyncPrefectClient, before: DeploymentResponse, after: DeploymentResponse) -> None:
    """Give a deployment back the pauses and the schedules that it had on the server."""
    now = {schedule.slug: schedule for schedule in after.schedules if schedule.slug}
    for schedule in before.schedules:
        if schedule.slug in now and schedule.active != now[schedule.slug].active:
            client.update_deployment_schedule(after.id, now[schedule.slug].id, active=schedule.active)
        elif not schedule.slug:
            client.create_deployment_schedules(
                after.id, [DeploymentScheduleCreate(schedule=schedule.schedule, active=schedule.active)]
            )
    if before.paused != after.paused:
        (client.pause_deployment if before.paused else client.resume_deployment)(after.id)
