"""Prefect's view of the stages: one named task for each, all recording into one pipeline run."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from prefect import Task, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

from rlcore.configs import StageConfig
from rlcore.errors import ConfigError
from tasks.following import StageFollower
from tasks.gate import GateReport, decide
from tasks.progress import Checklist, watcher
from tasks.records import artifacts, environment, folders, tracking, versioning
from tasks.records.lent_parameters import give_back
from tasks.records.parameters import Resolution, resolve, write_parameters
from tasks.records.processes import held
from tasks.records.stage import drop_states, stage_key
from tasks.records.trace import last_values
from tasks.records.tracking import RunLog, Tracker, Unfinished, recording
from tasks.records.versioning import StageFacts, Transient
from tasks.register import Registered
from tasks.register import register as register_version
from tasks.report import markdown
from tasks.servers import check_needed

RETRIES = 2
RETRY_DELAY_SECONDS: list[float] = [2, 10]
RUN_NAME = "rlhf-pipeline"
"""Of a pipeline run in MLflow."""

REPORTS = {"validate": artifacts.VALIDATION, "evaluate": artifacts.EVALUATE}
"""What a stage reports beside its trace."""


class PipelineRun:
    """One run of the pipeline: its parameters, its record in MLflow, and who watches it.

    A plain class on purpose: Prefect looks into dataclasses and mappings that it is handed.

    Attributes:
        facts: of the stages that are up to date.
        known: of stages that an earlier run brought up to date and that nothing changed since; DVC is not asked again.
        forced: stages to run although nothing changed.
    """

    def __init__(
        self, root: Path, resolution: Resolution, key: str, tracker: Tracker, watcher: Checklist, name: str = RUN_NAME
    ):
        self.root = root
        self.parameters = resolution.parameters
        self.changes = tuple(str(change) for change in resolution.changes)
        self.key = key
        self.tracker = tracker
        self.watcher = watcher
        self.forced: frozenset[str] = frozenset()
        self.facts: dict[str, StageFacts] = {}
        self.known: Mapping[str, StageFacts] = {}
        self.started = time.time()
        self.log = tracker.open_run(key, name)

    @property
    def generates_data(self) -> bool:
        """Whether the data come from the stage demo_data, and not from a folder of the user's."""
        return Path(self.parameters.validate.source) == artifacts.RAW

    @property
    def stage_seconds(self) -> float:
        """What the processes of the stages took; one that the cache replaced took nothing."""
        return sum(facts.seconds.get("wall", 0.0) for facts in self.facts.values())

    def bring_up_to_date(self, stage: str) -> StageFacts:
        """Run a stage if DVC asks for it, and record it either way."""
        with self._watched(stage):
            config = self.parameters.of_stage(stage)
            made = {path: md5 for facts in self.facts.values() for path, md5 in facts.outs.items()}
            inputs = stage_key(stage, config, self.root, known=made)
            log = self.tracker.open_run(f"{self.key}/{stage}", stage, self.log, inputs)
            with _ending(log), StageFollower(self.root, stage, log, self.watcher) as follower:
                log.params(config.model_dump(mode="json"))
                facts = self.known.get(stage) or self._reproduce(stage, config, follower)
                self.facts[stage] = self._record(facts, log)
        self.watcher.finish(stage, "cached" if facts.cache_hit else "done")
        return self.facts[stage]

    def decide(self) -> GateReport:
        """Judge the policy by what `evaluate` measured."""
        with self._watched("gate"):
            measured = artifacts.read_json(self.root / artifacts.EVALUATE)
            report = decide(self.parameters.gate, measured)
            self.log.numbers({**measured, "gate/passed": int(report.passed)})
            self.log.file(self.root / artifacts.EVALUATE)
            self.log.file(self.root / artifacts.FIGURES, "figures")
            self.log.tags(report.tags())
        refusals = ", ".join(reason.rule for reason in report.refusals)
        self.watcher.finish("gate", "done", "passed" if report.passed else f"refused by {refusals}")
        return report

    def register(self, report: GateReport) -> Registered:
        """Make the policy a version in the registry."""
        with self._watched("register"):
            version = register_version(
                self.parameters.register,
                client=self.tracker.client,
                run_id=self.log.run_id,
                facts=self.facts,
                gate=report,
                key=self.key,
                origin=self.parameters.policy_origin(),
                root=self.root,
            )
        self.watcher.finish("register", "done", str(version))
        return version

    def summary(self, report: GateReport, version: Registered) -> dict[str, Any]:
        """What happened, as plain values."""
        seconds = time.time() - self.started
        return {
            "key": self.key,
            "policy": self.parameters.policy_origin(),
            "seconds": seconds,
            "stage_seconds": self.stage_seconds,
            "import_seconds": sum(facts.seconds.get("import", 0.0) for facts in self.facts.values()),
            "orchestration_seconds": seconds - self.stage_seconds,
            "stages": {name: asdict(facts) for name, facts in self.facts.items()},
            "evaluation": artifacts.read_json(self.root / artifacts.EVALUATE),
            "gate": {
                "passed": report.passed,
                "reasons": [str(reason) for reason in report.reasons],
                "refusals": [str(reason) for reason in report.refusals],
            },
            "version": str(version),
            "changed_parameters": list(self.changes),
            "mlflow": {
                "uri": self.tracker.uri,
                "run_id": self.log.run_id,
                "page": self.tracker.run_url(self.log.run_id),
            },
        }

    def _reproduce(self, stage: str, config: StageConfig, follower: StageFollower) -> StageFacts:
        """Let DVC bring a stage up to date."""
        used = folders.named_folders(config, self.root)
        with accelerator_slot(stage, self.watcher):
            versioning.reproduce(
                stage,
                root=self.root,
                environment=os.environ,
                force=stage in self.forced or folders.have_changed(stage, used, self.root),
                while_running=follower.look,
            )
        # What was forced is done: a retry after a later fault must not train again.
        self.forced -= {stage}
        folders.remember(stage, used, self.root)
        facts = versioning.facts(stage, self.root)
        drop_states(stage, self.root)
        unread = {str(path) for path in self.parameters.unread_by_policy()} if stage == "policy" else set()
        return replace(facts, deps={path: md5 for path, md5 in facts.deps.items() if path not in unread})

    def _record(self, facts: StageFacts, log: RunLog) -> StageFacts:
        """Complete the stage's run from its outputs. The same after a cache hit as after training."""
        stage = facts.stage
        trace = self.root / artifacts.TRACES[stage]
        rows = artifacts.read_rows(trace)
        self.watcher.report(stage, rows)
        log.rows(rows)
        log.inputs(facts)
        log.tags({"cache_hit": str(facts.cache_hit).lower()})
        log.tags({f"dvc.{path}.md5": md5 for path, md5 in (*facts.deps.items(), *facts.outs.items())})
        log.file(trace)
        if stage in artifacts.SAMPLES:
            log.table(artifacts.read_rows(self.root / artifacts.SAMPLES[stage]), "samples.json")
        if stage in REPORTS:
            log.file(self.root / REPORTS[stage])
        return replace(facts, metrics=last_values(rows))

    @contextmanager
    def _watched(self, step: str) -> Iterator[None]:
        """Show a step as running, and as failed if the block does not come to its end."""
        check_needed()
        self.watcher.start(step)
        why = "stopped"
        try:
            yield
            why = ""
        except Exception as error:
            why = str(error)
            raise
        finally:
            if why:
                self.watcher.finish(step, "failed", why)


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
    lock = root / artifacts.STATE / "pipeline.lock"
    with held(lock, lambda owner: checklist.note(f"waiting for {owner}")), recording():
        versioning.prepare(root)
        give_back(root)
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
    """
    write_parameters(root / artifacts.PARAMS, resolution.changes)
    tracker = Tracker(root)
    key = _take_over(root, tracker, resolution.values, key, anew=bool(force))
    versioning.place_champion(tracker.champion_md5(), root)
    for stage in force:
        versioning.restart(stage, root)
    run = PipelineRun(root, resolution, key, tracker, checklist, name)
    run.forced = frozenset(force)
    if not run.generates_data:
        checklist.finish("demo_data", "skipped", "the data are your own")
    with _ending(run.log):
        run.log.params(resolution.values)
        run.log.tags({"policy": run.parameters.policy_origin()})
        run.log.file(root / artifacts.PARAMS)
        run.log.text("\n".join(tracking.versions()), "versions.txt")
        yield run
    tracking.forget_unfinished(root)


@contextmanager
def accelerator_slot(stage: str, watcher: Checklist) -> Iterator[None]:
    """Hold this machine's accelerator for a stage that trains. Other checkouts of the user wait for it."""
    if stage not in artifacts.TRAINED or not Path("/dev/nvidia0").exists():
        yield
        return
    lock = Path(tempfile.gettempdir()) / f"rlhf-accelerator-{os.getuid()}.lock"
    with held(lock, lambda owner: watcher.note(f"{stage} waits for the accelerator, which {owner} uses")):
        yield


def stage_task(stage: str) -> Task[..., StageFacts]:
    """A Prefect task that brings one stage up to date.

    Its arguments are the pipeline run and the facts of the stages before it, which draw the graph.
    """

    @task(
        name=stage,
        cache_policy=NO_CACHE,
        retries=RETRIES,
        retry_delay_seconds=RETRY_DELAY_SECONDS,
        retry_condition_fn=is_transient,
        tags=["gpu"] if stage in artifacts.TRAINED else [],
    )
    def run_stage(run: PipelineRun, *upstream: StageFacts) -> StageFacts:
        return run.bring_up_to_date(stage)

    return run_stage


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a failed stage may be tried again."""
    return isinstance(state.result(raise_on_failure=False), Transient)


demo_data, validate, sft, reward, policy, evaluate = (stage_task(stage) for stage in artifacts.STAGES)


@task(name="gate", cache_policy=NO_CACHE)
def gate(run: PipelineRun, evaluated: StageFacts) -> GateReport:
    """Whether the policy may become the challenger."""
    return run.decide()


@task(name="register", cache_policy=NO_CACHE)
def register(run: PipelineRun, report: GateReport) -> Registered:
    """The policy as a version in the registry; idempotent by the key of the pipeline run."""
    return run.register(report)


def publish(run: PipelineRun, report: GateReport, version: Registered) -> dict[str, Any]:
    """The summary of the run, shown in Prefect too."""
    summary = run.summary(report, version)
    create_markdown_artifact(markdown(summary), key="rlhf-summary", description="What happened, and was it good?")
    return summary


def _take_over(root: Path, tracker: Tracker, settings: dict[str, Any], key: str | None, *, anew: bool) -> str:
    """End what a killed pipeline run left open; the key of the run that begins.

    Args:
        root: the checkout.
        tracker: of its runs.
        settings: of the run that begins. An interrupted run with the same ones goes on under its key.
        key: of the run that begins, where it is known.
        anew: begin under a new key all the same.
    """
    this_run = str(flow_run.get_id() or uuid4())
    earlier = tracking.unfinished(root)
    tracker.sweep()
    if earlier is not None and earlier.flow_run_id != this_run:
        _mark_crashed(earlier.flow_run_id)
    if key is None:
        key = earlier.key if earlier is not None and earlier.settings == settings and not anew else this_run
    tracking.remember_unfinished(root, Unfinished(key, this_run, settings))
    return key


def _mark_crashed(flow_run_id: str) -> None:
    """A flow that was killed outright still counts as running in Prefect."""
    state: State[Any] = Crashed(message="Its process was killed.")
    with get_client(sync_client=True) as client:
        try:
            earlier = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return
        if earlier.state is not None and not earlier.state.is_final():
            client.set_flow_run_state(earlier.id, state, force=True)
        for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[earlier.id]))):
            if task_run.state is not None and not task_run.state.is_final():
                client.set_task_run_state(task_run.id, state, force=True)


@contextmanager
def _ending(log: RunLog) -> Iterator[None]:
    """End a run in MLflow with the status that the block earned."""
    status = "KILLED"
    try:
        yield
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        log.close(status)
