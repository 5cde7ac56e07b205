"""The pipeline as a flow: demo_data → validate → sft → reward → policy → evaluate → gate → register."""

from typing import Any

from prefect import flow

from tasks.orchestration import demo_data, evaluate, gate, policy, publish, register, reward, sft, validate
from tasks.records.form import Algorithm, Seed, SettingsForm, Stage, assignments
from tasks.records.versioning import StageFacts
from tasks.running.opening import pipeline_run
from tasks.running.pipeline_run import PipelineRun


@flow(name="rlhf-pipeline")
def rlhf_pipeline(
    algorithm: Algorithm | None = None,
    seed: Seed | None = None,
    settings: SettingsForm | None = None,
    params_file: str | None = None,
    sets: list[str] | None = None,
    force: list[Stage] | None = None,
) -> dict[str, Any]:
    """Train a policy from human feedback, measure it, and register it as challenger if it earned that.

    What is left empty stays as it is in `params.yaml`.

    Args:
        algorithm: how the policy is trained.
        seed: of every random number.
        settings: of single sections. They go over those of `params_file`.
        params_file: parameter file whose settings go over those of `params.yaml`.
        sets: single settings, "section.key=value"; they go over all others.
        force: stages to run although nothing changed.

    Returns:
        A summary: facts of each stage, the evaluation, the gate's verdict, the registered version.
    """
    chosen = assignments(algorithm, seed, settings)
    with pipeline_run(params_file, [*chosen, *(sets or [])], force or []) as run:
        report = gate(run, measured_policy(run))
        version = register(run, report)
        return publish(run, report, version)


def measured_policy(run: PipelineRun) -> StageFacts:
    """The stages, from data to a measured policy."""
    raw = [demo_data(run)] if run.generates_data else []
    data = validate(run, *raw)
    start = sft(run, data)
    judge = reward(run, data, start)
    trained = policy(run, data, start, judge)
    return evaluate(run, data, start, judge, trained)
