"""The whole flow on a temporary Prefect server, with stages that take no time: first run, second run, the record."""

import json
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tasks.records import artifacts
from tasks.records.artifacts import STAGES
from tests.support.checkout import environment, make_checkout, processes_in, rlhf, start_rlhf
from tests.support.fake_stages import REPORT
from tests.support.runs import runs_of

pytestmark = pytest.mark.slow

TEN_STEPS = list(range(1, 11))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout under git in which the pipeline ran twice; what was said is kept beside it."""
    root = make_checkout(tmp_path_factory.mktemp("flow") / "checkout")
    git(root, "init", "-q")
    git(root, "add", "--all")
    git(root, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "start")
    for number in (1, 2):
        result = rlhf(root, "pipeline", "run")
        assert result.returncode == 0, result.stdout
        (root.parent / f"said-{number}").write_text(result.stdout)
        (root.parent / f"params-{number}").write_bytes((root / "params.yaml").read_bytes())
    return root


@pytest.fixture(scope="module")
def runs(checkout):
    return runs_of(checkout)


def git(root, *arguments):
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def kept_file(runs, run, name):
    return Path(runs.client.download_artifacts(run.info.run_id, name)).read_text()


def test_the_terminal_shows_each_step_and_the_answer_and_no_noise(checkout):
    first, second = ((checkout.parent / f"said-{number}").read_text() for number in (1, 2))
    for position, stage in enumerate(STAGES, start=1):
        assert f"[{position}/8] {stage}: done in" in first
        assert f"[{position}/8] {stage}: cached in" in second
    for said in (first, second):
        assert "gold/policy 0.800" in said
        assert "the gate refused it" in said
        assert "git add data/models/champion.dvc dvc.lock && git commit" in said
        for noise in ("Traceback", "INFO", "WARNING", "Error"):
            assert noise not in said


def test_no_process_and_no_lock_is_left(checkout):
    assert processes_in(checkout) == []
    assert not (checkout / ".rlhf" / "unfinished.json").exists()


def test_two_pipeline_runs_with_one_run_for_each_stage_and_whole_traces(runs):
    first, second = runs.pipelines()
    assert len(runs.runs) == 2 * (1 + len(STAGES))
    assert {run.info.status for run in runs.runs} == {"FINISHED"}
    for pipeline, cache_hit in ((first, "false"), (second, "true")):
        for stage in STAGES:
            run = runs.stage(pipeline, stage)
            assert run.data.tags["cache_hit"] == cache_hit
            for metric in ("fake/loss", "kl/ref_sequence_mean", "fake/broken_non_finite"):
                assert runs.steps(run, metric) == TEN_STEPS
            assert "fake/broken" not in run.data.metrics
            assert run.data.metrics["best/step"] == 10


def test_data_parameters_and_versions_are_recorded(checkout, runs):
    pipeline = runs.pipelines()[0]
    policy = runs.stage(pipeline, "policy")
    md5 = artifacts.content_md5(checkout / "data" / "models" / "policy")
    assert policy.data.tags["dvc.data/models/policy.md5"] == md5
    assert {each.dataset.name: each.dataset.digest for each in policy.inputs.dataset_inputs} == {
        path: artifacts.content_md5(checkout / path)
        for path in ("data/validated", "data/models/sft", "data/models/reward")
    }
    assert policy.data.params["kl_target"] == "1.0"
    assert pipeline.data.params["ppo.kl_target"] == "1.0"
    assert pipeline.data.tags["mlflow.source.git.commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert pipeline.data.metrics["gold/policy"] == 0.8
    assert pipeline.data.metrics["gate/passed"] == 0


def test_files_are_kept_with_the_runs(checkout, runs):
    pipeline = runs.pipelines()[1]
    kept = {file.path for file in runs.client.list_artifacts(pipeline.info.run_id)}
    assert kept == {"params.yaml", "versions.txt", "evaluate.json", "figures", "data"}
    table = json.loads(kept_file(runs, runs.stage(pipeline, "evaluate"), "samples.json"))
    assert table == {"columns": ["step", "prompt", "before", "after"], "data": [[10, "1 + 1?", "3", "2"]]}
    trace = kept_file(runs, runs.stage(pipeline, "policy"), "policy.jsonl")
    assert trace == (checkout / artifacts.TRACES["policy"]).read_text()


def test_each_run_keeps_the_report_on_its_data_also_from_the_cache(checkout, runs):
    for pipeline in runs.pipelines():
        assert json.loads(kept_file(runs, pipeline, "data/validation.json")) == REPORT
        html = kept_file(runs, pipeline, "data/validation.html")
        assert "Every row keeps every rule." in html
        assert "There is no champion yet" in html
        (entry,) = pipeline.inputs.dataset_inputs
        md5 = artifacts.content_md5(checkout / "data" / "validated")
        assert (entry.dataset.name, entry.dataset.digest) == ("data/validated", md5)


def test_parameters_that_did_not_change_leave_the_file_as_it_was(checkout):
    assert (checkout.parent / "params-1").read_bytes() == git(checkout, "show", "HEAD:params.yaml").encode()
    assert (checkout.parent / "params-2").read_bytes() == (checkout.parent / "params-1").read_bytes()


def test_git_shows_what_dvc_keeps_and_dvc_is_clean(checkout):
    shown = git(checkout, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert shown == ["?? data/models/champion.dvc", "?? dvc.lock"]
    command = [sys.executable, "-m", "dvc", "status"]
    status = subprocess.run(
        command, cwd=checkout, env=environment(checkout), capture_output=True, text=True, check=True
    )
    assert "Data and pipelines are up to date." in status.stdout


@pytest.mark.long
def test_the_ui_command_serves_both_and_ends_with_ctrl_c(checkout, runs):
    process = start_rlhf(checkout, "ui")
    addresses = dict(process.stdout.readline().strip().split(": ") for _ in range(2))
    assert process.stdout.readline().startswith("Ctrl-C")
    run_id = runs.pipelines()[0].info.run_id
    artifact = f"{addresses['MLflow']}/get-artifact?path=params.yaml&run_uuid={run_id}"
    with urllib.request.urlopen(artifact) as response:
        assert response.read() == (checkout / "params.yaml").read_bytes()
    with urllib.request.urlopen(addresses["Prefect"]) as response:
        assert b"<html" in response.read()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert processes_in(checkout) == []


def test_prefect_knows_the_graph_and_the_summary(checkout):
    with sqlite3.connect(checkout / ".rlhf" / "prefect" / "prefect.db") as database:
        assert {row[0] for row in database.execute("select state_type from flow_run")} == {"COMPLETED"}
        tasks = database.execute(
            "select name, state_type, task_inputs from task_run order by expected_start_time"
        ).fetchall()
        artifact = database.execute("select data from artifact where key = 'rlhf-summary'").fetchall()
        (table, *_) = database.execute("select data, description from artifact where key = 'validation'").fetchall()
    assert len(tasks) == 2 * 8
    assert {state for _, state, _ in tasks} == {"COMPLETED"}
    inputs = {name.rpartition("-")[0]: json.loads(found) for name, _, found in tasks}
    # demo_data has no task before it; evaluate sees validate, sft, reward and policy.
    assert sum(len(found) for found in inputs["demo_data"].values()) == 0
    assert sum(len(found) for found in inputs["evaluate"].values()) == 4
    assert sum(len(found) for found in inputs["register"].values()) == 1
    assert len(artifact) == 2
    assert "What happened" in artifact[0][0]
    assert "9,000 usable, 0 dropped, 0 repaired" in table[0]
    assert table[1] == "Usable. Every row keeps every rule."
