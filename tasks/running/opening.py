"""Everything around a run of the pipeline: the checkout's lock, its parameters, its champion, its record in MLflow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

from rlcore.errors import ConfigError
from tasks.records import artifacts, environment, tracking, versioning
from tasks.records.folders import check_source
from tasks.records.lent_parameters import give_back
from tasks.records.parameters import Resolution, resolve, write_parameters
from tasks.records.processes import held
from tasks.records.remote import check_remote
from tasks.records.tracking import COMPARISON, PIPELINE_RUN, Tracker, Unfinished, ending, recording
from tasks.registry.store import champion_md5
from tasks.running.pipeline_run import RUN_NAME, PipelineRun
from tasks.running.progress import Checklist, watcher


@contextmanager
def pipeline_run(params_file: str | None, sets: Sequence[str], force: Sequence[str]) -> Iterator[PipelineRun]:
    """Everything around the stages: lock, parameters, champion, the parent run in MLflow and its end.

    Raises:
        ConfigError: no checkout, faulty parameters, or an unknown stage to force.
        TrackingFailed: MLflow does not answer.
    """
    if unknown := set(force) - set(artifacts.STAGES):
        raise ConfigError(f"force: found {', '.join(sorted(unknown))}, expected some of {', '.join(artifacts.STAGES)}.")
    with held_checkout() as (root, checklist):
        resolution = resolve(root / artifacts.PARAMS, Path(params_file) if params_file else None, sets)
        with opened_run(root, checklist, resolution, force=force) as run:
            yield run


@contextmanager
def held_checkout() -> Iterator[tuple[Path, Checklist]]:
    """The checkout around the working directory, held for one run of its pipeline, and who watches it.

    What a killed run left is put in order first.

    Raises:
        ConfigError: no checkout, or a damaged `dvc.lock`.
    """
    root = artifacts.find_root()
    environment.apply(root)
    checklist = watcher(get_run_logger().info)
    with held(root / artifacts.RUN_LOCK, lambda owner: checklist.note(f"waiting for {owner}")), recording():
        versioning.prepare(root)
        give_back(root)
        _mark_crashed(root)
        yield root, checklist


@contextmanager
def opened_run(
    root: Path,
    checklist: Checklist,
    resolution: Resolution,
    *,
    force: Sequence[str] = (),
    key: str | None = None,
    name: str = RUN_NAME,
) -> Iterator[PipelineRun]:
    """One run of the pipeline in a checkout that is held.

    Args:
        root: the checkout.
        checklist: who watches.
        resolution: parameters; what differs from params.yaml is written there.
        force: stages to run although nothing changed.
        key: of the runs in MLflow; None takes up an interrupted run with the same parameters, or begins a new one.
        name: of the parent run in MLflow.

    Raises:
        ConfigError: the folder with the data is not there.
    """
    check_source(resolution.parameters.validate.source, root)
    # A run with a key is one of a comparison, which registers nothing.
    if key is None:
        check_remote(root, checklist.note)
    write_parameters(root / artifacts.PARAMS, resolution.changes)
    tracker = Tracker(root)
    tracker.sweep()
    key = take_up(root, resolution.values, key=key, anew=bool(force))
    versioning.place_champion(champion_md5(tracker.client), root)
    for stage in force:
        versioning.restart(stage, root)
    run = PipelineRun(root, resolution, key, tracker, checklist, name)
    run.forced = frozenset(force)
    if not run.generates_data:
        checklist.finish("demo_data", "skipped", "the data are your own")
    with ending(run.log.close):
        run.log.params(resolution.values)
        run.log.tags({"policy": run.parameters.policy_origin()})
        run.log.file(root / artifacts.PARAMS)
        run.log.text("\n".join(tracking.versions()), "versions.txt")
        yield run
    tracking.forget_unfinished(root)


def take_up(
    root: Path, settings: dict[str, Any], kind: str = PIPELINE_RUN, *, key: str | None = None, anew: bool = False
) -> str:
    """Note what begins; its key: that of an interrupted one which asked for the same, or a new one.

    Args:
        root: the checkout.
        settings: what it is asked for.
        kind: PIPELINE_RUN or COMPARISON.
        key: where it is known.
        anew: begin under a new key although an interrupted one asked for the same.
    """
    this_run = str(flow_run.get_id() or uuid4())
    earlier = tracking.unfinished(root, kind)
    if key is None:
        key = earlier.key if earlier is not None and earlier.settings == settings and not anew else this_run
    tracking.remember_unfinished(root, Unfinished(key, this_run, settings), kind)
    return key


def _mark_crashed(root: Path) -> None:
    """A flow of this checkout that was killed outright still counts as running in Prefect."""
    noted = {note.flow_run_id for kind in (PIPELINE_RUN, COMPARISON) if (note := tracking.unfinished(root, kind))}
    for flow_run_id in noted - {flow_run.get_id()}:
        _mark_run_crashed(UUID(flow_run_id))


def _mark_run_crashed(flow_run_id: UUID) -> None:
    state: State[Any] = Crashed(message="Its process was killed.")
    with get_client(sync_client=True) as client:
        try:
            earlier = client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            return
        if earlier.state is not None and not earlier.state.is_final():
            client.set_flow_run_state(earlier.id, state, force=True)
        for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[earlier.id]))):
            if task_run.state is not None and not task_run.state.is_final():
                client.set_task_run_state(task_run.id, state, force=True)
