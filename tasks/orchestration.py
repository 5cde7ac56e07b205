"""Prefect's view of a pipeline run: one named task for each stage."""

from typing import Any

from prefect import Task, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run

from tasks.gate import GateReport
from tasks.records import artifacts
from tasks.records.versioning import StageFacts, Transient
from tasks.registry.registration import Registered
from tasks.running.pipeline_run import PipelineRun
from tasks.running.report import markdown
from tasks.service.notifications import announce_outcome

RETRIES = 2
RETRY_DELAY_SECONDS: list[float] = [2, 10]


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
        facts = run.bring_up_to_date(stage)
        if stage == "validate" and run.data is not None:
            create_table_artifact(run.data.table(), key="validation", description=run.data.headline())
        return facts

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
    return run.register(report, flow_run.get_id())


def publish(run: PipelineRun, report: GateReport, version: Registered) -> dict[str, Any]:
    """The summary of the run, shown in Prefect too."""
    summary = run.summary(report, version)
    create_markdown_artifact(markdown(summary), key="rlhf-summary", description="What happened, and was it good?")
    announce_outcome(summary)
    return summary
