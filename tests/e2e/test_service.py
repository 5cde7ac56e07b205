"""`rlhf up` and what it keeps standing: runs from the form, retraining, kills, cancellation. It is started once."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.records.artifacts import STAGES, content_md5
from tasks.records.tracking import ATTEMPTS_TAG
from tasks.registry.store import POLICY_MODEL
from tasks.service.services import MLFLOW, PREFECT, WORKER, Service
from tests.support.checkout import FAKE_REGISTER, ROOT, environment, make_checkout, plan, processes_in, rlhf, wait_until
from tests.support.runs import runs_of

pytestmark = pytest.mark.long

TEN_STEPS = list(range(1, 11))
PIPELINE, NIGHTLY = "rlhf-pipeline/rlhf-pipeline", "retraining/nightly"


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A checkout after `rlhf up`."""
    checkout = make_checkout(tmp_path_factory.mktemp("standing") / "checkout")
    shutil.copytree(ROOT / "flows", checkout / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("rlhf_pipeline.py", "rlhf_compare.py", "retraining.py"):
        path = checkout / "flows" / name
        path.write_text(FAKE_REGISTER + path.read_text())
    (checkout / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "prefect.yaml", checkout / "infra")
    try:
        up(checkout)
        yield checkout
    finally:
        said = rlhf(checkout, "down").stdout
    assert processes_in(checkout) == [], said


def up(checkout):
    result = rlhf(checkout, "up")
    assert result.returncode == 0, result.stdout
    return result.stdout


def prefect(checkout, *arguments, check=True):
    """Prefect's own command line in the checkout, which is told nothing about a server."""
    command = [sys.executable, "-m", "prefect", *arguments]
    result = subprocess.run(
        command, cwd=checkout, env=environment(checkout), capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0 or not check, result.stdout + result.stderr
    return result.stdout + result.stderr


def run(checkout, deployment=PIPELINE, *arguments):
    return prefect(checkout, "deployment", "run", deployment, "--watch", *arguments)


def start(checkout, *arguments):
    prefect(checkout, "deployment", "run", PIPELINE, *arguments)


def flow_runs(checkout):
    """Runs of the flows that train, oldest first."""
    trains = FlowFilter(name=FlowFilterName(any_=["rlhf-pipeline", "retraining"]))
    url = f"{Service(PREFECT, checkout).url}/api"
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_filter=trains, sort=FlowRunSort.EXPECTED_START_TIME_ASC)


def states(checkout):
    return [run.state.name for run in flow_runs(checkout) if not run.state.is_scheduled()]


def cache_hits(checkout):
    """Stages that the newest pipeline run took from the cache; each of its stages has its whole trace."""
    runs = runs_of(checkout)
    pipeline = runs.pipelines()[-1]
    stages = {stage: runs.stage(pipeline, stage) for stage in STAGES}
    assert pipeline.info.status == "FINISHED"
    assert all(runs.steps(run, "fake/loss") == TEN_STEPS for run in stages.values())
    return [stage for stage, run in stages.items() if run.data.tags["cache_hit"] == "true"]


def test_a_second_up_finds_everything_and_mends_what_was_killed(standing):
    for kind in (MLFLOW, WORKER):
        os.kill(Service(kind, standing).process, signal.SIGKILL)
    url = Service(PREFECT, standing).url
    said = up(standing)
    assert "starting MLflow" in said
    assert "starting the worker" in said
    assert f"Prefect: {url} (ran already)" in said
    assert f"next: prefect deployment run {PIPELINE} --watch" in said
    listed = prefect(standing, "deployment", "ls")
    assert all(name in listed for name in (PIPELINE, NIGHTLY, "rlhf-compare/rlhf-compare"))


def test_the_form_reaches_params_and_mlflow_and_reruns_what_it_affects(standing):
    refused = prefect(standing, "deployment", "run", PIPELINE, "--param", 'settings={"ppo": {"lam": 2}}', check=False)
    assert "settings" in refused
    assert "Traceback" not in refused
    assert "Completed" in run(standing)
    assert cache_hits(standing) == []
    assert "Completed" in run(standing)
    assert cache_hits(standing) == list(STAGES)
    assert "Completed" in run(standing, PIPELINE, "--param", 'settings={"ppo": {"lam": 0.9}}')
    assert cache_hits(standing) == ["demo_data", "validate", "sft", "reward"]
    assert "lam: 0.9" in (standing / "params.yaml").read_text()
    assert "lam: 0.9" in (standing / "dvc.lock").read_text()
    pipelines = runs_of(standing).pipelines()
    assert [run.data.params["ppo.lam"] for run in pipelines] == ["0.95", "0.95", "0.9"]


def test_retraining_is_skipped_until_somebody_adds_data(standing):
    client = MlflowClient(f"sqlite:///{standing}/.rlhf/mlflow.db")
    client.create_registered_model(POLICY_MODEL)
    learnt = {"dvc.data/raw/demo.md5": content_md5(standing / "data/raw/demo")}
    client.create_model_version(POLICY_MODEL, source=(standing / "data").as_uri(), tags=learnt)
    before = len(runs_of(standing).runs)
    run(standing, NIGHTLY)
    assert flow_runs_named(standing, "Skipped").message.startswith("nothing new: rlhf-policy version 1 learnt from")
    assert len(runs_of(standing).runs) == before

    (standing / "pairs.jsonl").write_text('{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}\n')
    (standing / "prompts.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    said = rlhf(standing, "data", "add", "pairs.jsonl").stdout
    assert "data/raw/own/preferences.jsonl: 1 rows added; 1 in all" in said
    assert "still empty: demonstrations.jsonl, prompts.jsonl" in said
    assert "retraining/nightly" not in said
    assert "retraining/nightly begins" in rlhf(standing, "data", "add", "prompts.jsonl").stdout
    wait_until(lambda: states(standing).count("Completed") == 4, 400)
    assert runs_of(standing).pipelines()[-1].data.params["validate.source"] == "data/raw/own"
    assert cache_hits(standing) == []


def flow_runs_named(checkout, state):
    (found,) = [run for run in flow_runs(checkout) if run.state.name == state]
    return found.state


def test_after_the_machine_went_down_the_next_run_goes_on_where_it_was(standing):
    plan(standing, "ppo", at=8, do="wait")
    start(standing, "--param", "seed=5")
    wait_until((standing / "waiting").exists)
    for process in pids_in(standing):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert "it counts as crashed" in up(standing)
    assert states(standing)[-1] == "Crashed"
    assert "Completed" in run(standing, PIPELINE, "--param", "seed=5")
    pipeline = runs_of(standing).pipelines()[-1]
    assert pipeline.data.tags[ATTEMPTS_TAG] == "2"
    assert "policy" not in cache_hits(standing)
    assert "resumed at step 6" in (standing / ".rlhf/logs/policy.log").read_text()
    assert not [run for run in runs_of(standing).runs if run.info.status == "RUNNING"]


def pids_in(checkout):
    """Every process of the checkout: servers, worker, flow, DVC, stage."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cwd").resolve() == checkout.resolve():
                found.append(int(folder.name))
    return found


def test_down_cancels_the_run_and_keeps_its_state(standing):
    plan(standing, "sft", at=8, do="wait")
    start(standing, "--param", "seed=6")
    wait_until((standing / "waiting").exists)
    said = rlhf(standing, "down").stdout
    assert "cancelling the run" in said
    assert "Ended: the worker, MLflow, Prefect." in said
    assert processes_in(standing) == []
    assert runs_of(standing).pipelines()[-1].info.status == "KILLED"
    assert not (standing / "prefect.toml").exists()
    assert rlhf(standing, "down").stdout == "Nothing of this checkout was running.\n"
    up(standing)
    assert "Cancelled" in states(standing)
    assert "Completed" in run(standing, PIPELINE, "--param", "seed=6")
    assert "resumed at step 6" in (standing / ".rlhf/logs/sft.log").read_text()


def test_a_named_server_that_does_not_answer_is_one_line(standing):
    said = subprocess.run(
        [sys.executable, "-m", "rlcore.cli.main", "up"], cwd=standing, capture_output=True, text=True, check=False,
        env={**environment(standing), "PREFECT_API_URL": "http://127.0.0.1:9/api"},
    )  # fmt: skip
    assert said.returncode == 75
    assert said.stderr == (
        "rlhf: Prefect at http://127.0.0.1:9/api does not answer. Start it, or unset PREFECT_API_URL.\n"
    )


def test_notes_of_the_services_are_json_that_a_person_can_read(standing):
    note = json.loads((standing / ".rlhf/services/prefect.json").read_text())
    assert note.keys() == {"group", "start_ticks", "port", "settings"}
