"""What MLflow knows about the runs of a checkout."""

from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.records.tracking import EXPERIMENT, KEY_TAG


@dataclass
class Runs:
    """The runs of a checkout's embedded store."""

    client: MlflowClient
    runs: list[Run]

    def pipelines(self) -> list[Run]:
        """Parent runs, oldest first."""
        return [run for run in self.runs if "mlflow.parentRunId" not in run.data.tags]

    def stage(self, pipeline: Run, stage: str) -> Run:
        """The one run of a stage of a pipeline run."""
        key = f"{pipeline.data.tags[KEY_TAG]}/{stage}"
        (run,) = [run for run in self.runs if run.data.tags[KEY_TAG] == key]
        assert run.data.tags["mlflow.parentRunId"] == pipeline.info.run_id
        return run

    def steps(self, run: Run, metric: str) -> list[int]:
        """Steps of all points of a metric, in the order of steps."""
        return sorted(point.step for point in self.client.get_metric_history(run.info.run_id, metric))


def runs_of(checkout: Path) -> Runs:
    """All runs of a checkout."""
    client = MlflowClient(f"sqlite:///{checkout}/.rlhf/mlflow.db")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return Runs(client, list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])))
