"""The pipeline as a flow: demo_data → validate → sft → reward → policy → evaluate → gate → register."""

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from tasks import orchestration as tasks
from tasks.report import markdown


@flow(name="rlhf-pipeline")
def rlhf_pipeline(
    params_file: str | None = None, sets: list[str] | None = None, force: list[str] | None = None
) -> dict[str, Any]:
    """Train a policy from human feedback, measure it, and register it as challenger if it earned that.

    Args:
        params_file: parameter file whose settings go over those of `params.yaml`.
        sets: single settings, "section.key=value"; they go over both.
        force: stages to run although nothing changed.

    Returns:
        A summary: facts of each stage, the evaluation, the gate's verdict, the registered version.
    """
    with tasks.pipeline_run(params_file, sets or [], force or []) as run:
        raw = [tasks.demo_data(run)] if run.generates_data else []
        data = tasks.validate(run, *raw)
        start = tasks.sft(run, data)
        judge = tasks.reward(run, data, start)
        trained = tasks.policy(run, data, start, judge)
        evaluated = tasks.evaluate(run, data, start, judge, trained)
        report = tasks.gate(run, evaluated)
        version = tasks.register(run, report)
        summary = run.summary(report, version)
        create_markdown_artifact(markdown(summary), key="rlhf-summary", description="What happened, and was it good?")
    return summary
