"""`rlhf llm --log mlflow`: a run is one run of MLflow, each step once, however often it is killed and taken up."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rlcore.cli.stopping import Stopped
from rlcore.errors import ConfigError
from rlcore.results import TrainResult
from tasks.records.artifacts import content_md5, read_json, scratch
from tasks.running.llm_runs import EXPERIMENT, RunInProgress, mlflow
from tests.support import stand_ins
from tests.support.checkout import ROOT
from tests.support.llm import PAIRS, llm, write_rows

SETTINGS = {"llm": {"lr": 0.1}, "dpo": {"learning_rate": 0.1, "lora": None}}


@pytest.fixture
def client(store, tmp_path: Path, monkeypatch) -> Iterator[MlflowClient]:
    """MLflow, and a checkout as working directory."""
    (tmp_path / "dvc.yaml").write_text("stages: {}")
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ):
        yield store[0]


def runs_named(client: MlflowClient, name: str) -> list[Run]:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == name]


def steps_of(client: MlflowClient, run: Run, metric: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run.info.run_id, metric)]


def test_a_killed_run_that_is_taken_up_is_one_run_with_each_step_once(client, tmp_path, capsys):
    stand_ins.gemma3(tmp_path / "model")
    write_rows(tmp_path / "data/train.jsonl", PAIRS)
    write_rows(tmp_path / "data/valid.jsonl", PAIRS[:2])
    # 16 pairs are 2 steps an epoch
    flags = ["--trainer", "dpo", "--model", "model", "--epochs", "15", "--logging-steps", "1", "--log", "mlflow"]
    flags += ["--save-strategy", "steps", "--save-steps", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlcore.cli.main", "llm", "--train", *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("dpo 7/30: loss"):
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [run.info.status for run in runs_named(client, "project-name")] == ["RUNNING"]

    assert llm(*flags, "--resume-from-checkpoint", "auto") == 0
    (run,) = runs_named(client, "project-name")
    assert run.info.status == "FINISHED"
    assert steps_of(client, run, "dpo/loss") == list(range(1, 31))
    assert len(set(steps_of(client, run, "validation/loss"))) == len(steps_of(client, run, "validation/loss")) == 15
    assert run.data.params["dpo.beta"] == run.data.params["llm.dpo_beta"] == "0.1"
    assert run.data.tags["resumed.llm.resume_from_checkpoint"] == "auto"
    assert run.data.tags["model.md5"] == content_md5(tmp_path / "project-name")
    assert run.data.tags["version.trl"] == "1.16.0"
    assert run.data.metrics["best/step"] == steps_of(client, run, "best/validation/loss")[0] == 30
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "metrics.jsonl", "samples.json", "versions.txt",
    }  # fmt: skip
    written = read_json(Path(client.download_artifacts(run.info.run_id, "samples.json")))
    assert {row[written["columns"].index("step")] for row in written["data"]} == set(range(2, 31, 2))
    page = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    assert f"MLflow: `rlhf ui`, then {page}" in capsys.readouterr().out.splitlines()
    # nothing of it is left for a run that may be taken up
    assert list((tmp_path / scratch("llm")).iterdir()) == []

    # asked for again, the run is done already
    assert llm(*flags, "--resume-from-checkpoint", "auto") == 0
    (again,) = runs_named(client, "project-name")
    assert (again.info.status, steps_of(client, again, "dpo/loss")) == ("FINISHED", list(range(1, 31)))


@pytest.mark.parametrize(("error", "status"), [(ValueError("a fault"), "FAILED"), (Stopped(15), "KILLED")])
def test_an_exception_ends_the_run_with_its_status_and_what_was_reported(client, error, status):
    name = f"ends-{status}"

    def train() -> None:
        with mlflow(name, name, SETTINGS) as run:
            run.log(0, {"progress/total_steps": 2.0})
            run.log(1, {"dpo/loss": float("nan")})
            raise error

    with pytest.raises(type(error)):
        train()
    (ended,) = runs_named(client, name)
    assert ended.info.status == status
    assert ended.data.metrics == {"progress/total_steps": 2.0, "dpo/loss_non_finite": 1.0}


def test_an_attempt_with_another_trainer_is_another_run(client, tmp_path):
    (tmp_path / "model").mkdir()
    for rate in (0.1, 0.2, 0.2):
        with mlflow("same-key", "another", SETTINGS | {"dpo": {"learning_rate": rate}}) as run:
            run.log(1, {"dpo/loss": rate})
            run.finish(TrainResult(tmp_path / "model", 1))
    runs = runs_named(client, "another")
    assert sorted(run.data.metrics["dpo/loss"] for run in runs) == [0.1, 0.2]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_run_whose_process_is_gone_ends_and_one_whose_process_lives_does_not(client):
    with mlflow("living", "living", SETTINGS):
        other = client.create_run(
            runs_named(client, "living")[0].info.experiment_id,
            tags=runs_named(client, "living")[0].data.tags | {"pipeline.key": "gone", "mlflow.runName": "gone"},
        )
        with mlflow("third", "third", SETTINGS):
            pass
        assert client.get_run(other.info.run_id).info.status == "KILLED"
        assert runs_named(client, "living")[0].info.status == "RUNNING"


def test_two_processes_are_not_at_one_run(client):
    with (
        mlflow("one", "one", SETTINGS),
        pytest.raises(RunInProgress, match=f"Process {os.getpid()} is at this run already"),
        mlflow("one", "one", SETTINGS),
    ):
        raise AssertionError("two at one run")


def test_outside_a_checkout_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="needs a checkout: found no dvc.yaml here or above"):
        mlflow("key", "name", SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_named_before_training(client, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    stand_ins.gemma3(tmp_path / "model")
    write_rows(tmp_path / "data/train.jsonl", PAIRS)
    assert llm("--trainer", "dpo", "--model", "model", "--log", "mlflow") == 75
    assert "MLflow at http://127.0.0.1:9 does not answer. Start it, or unset MLFLOW_TRACKING_URI." in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "project-name").exists()
