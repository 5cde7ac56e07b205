"""Retraining as a flow: the pipeline on data that no policy has learnt from yet, or a state that says Skipped."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.rlhf_pipeline import measured_policy
from tasks.orchestration import gate, publish, register
from tasks.running.retraining import Start, retraining_run


@flow(name="retraining")
def retraining(
    start: Start = "base",
    source: str | None = None,
    params_file: str | None = None,
    sets: list[str] | None = None,
) -> dict[str, Any] | State[None]:
    """Train a challenger if no policy in the registry, whether champion or refused, learnt from the data yet.

    Args:
        start: what supervised fine-tuning begins with: base is sft.model_name, champion the policy that counts.
        source: folder with the data; by default validate.source. It becomes that setting.
        params_file: parameter file whose settings go over those of `params.yaml`.
        sets: single settings, "section.key=value"; they go over both.

    Returns:
        A summary, as of the pipeline; the state Skipped where nothing is new.
    """
    with retraining_run(start, source, params_file, sets or []) as found:
        if found.run is None:
            return Completed(name="Skipped", message=found.reason)
        report = gate(found.run, measured_policy(found.run))
        version = register(found.run, report)
        return publish(found.run, report, version)
