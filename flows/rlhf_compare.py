"""Algorithms beside each other as a flow: the pipeline once for each arm and seed, up to the gate."""

from typing import Any

from prefect import flow

from flows.rlhf_pipeline import measured_policy
from tasks.orchestration import gate
from tasks.running.comparison import comparison


@flow(name="rlhf-compare")
def rlhf_compare(
    seeds: list[int] | None = None, params_file: str | None = None, sets: list[str] | None = None
) -> dict[str, Any]:
    """Train a policy with each algorithm on the same data, and measure them all. Nothing is registered.

    Args:
        seeds: with which each algorithm runs; by default the one of the settings.
        params_file: parameter file whose settings go over those of `params.yaml`.
        sets: single settings, "section.key=value"; they go over both.

    Returns:
        The table as Markdown and as numbers, and where MLflow shows it.
    """
    with comparison(seeds, params_file, sets or []) as compared:
        for seed in compared.seeds:
            for arm in compared.arms:
                with compared.run(arm, seed) as run:
                    compared.take(arm, seed, run, gate(run, measured_policy(run)))
        return compared.publish()
