"""The deployment of infra/prefect.yaml: a server, a worker, two commands, and a cancelled run that leaves nothing."""

import shutil
import subprocess
import sys
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.records.tracking import ATTEMPTS_TAG
from tests.support.checkout import FAKE_REGISTER, ROOT, environment, make_checkout, plan, processes_in, wait_until
from tests.support.runs import runs_of

pytestmark = pytest.mark.slow


@pytest.fixture
def deployed(tmp_path, prefect_api):
    """A checkout with a worker, and the flow deployed by the documented command."""
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "prefect.yaml", checkout / "infra")
    shutil.copytree(ROOT / "flows", checkout / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    source = (ROOT / "flows" / "rlhf_pipeline.py").read_text()
    (checkout / "flows" / "rlhf_pipeline.py").write_text(FAKE_REGISTER + source)
    (checkout / ".rlhf").mkdir()
    with (checkout / ".rlhf" / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "rlhf", "--type", "process", "--limit", "1"],
            cwd=checkout, env=settings(checkout, prefect_api), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: b"started!" in (checkout / ".rlhf" / "worker.log").read_bytes())
        prefect(checkout, prefect_api, "--no-prompt", "deploy", "--prefect-file", "infra/prefect.yaml", "--all")
        yield checkout
    finally:
        worker.terminate()
        worker.wait(timeout=60)


def settings(checkout, api):
    return {**environment(checkout, api), "PREFECT_HOME": str(checkout / ".rlhf"), "PWD": str(checkout)}


def prefect(checkout, api, *arguments, check=True):
    command = [sys.executable, "-m", "prefect", *arguments]
    result = subprocess.run(
        command, cwd=checkout, env=settings(checkout, api), capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0 or not check, result.stdout + result.stderr
    return result


def state_of(api, run_id):
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(run_id)).state.type.value


def test_a_deployed_run_is_cancelled_and_the_next_one_completes_it(deployed, prefect_api):
    bare = prefect(deployed, prefect_api, "deployment", "run", "rlhf-pipeline", check=False)
    assert bare.returncode == 1
    assert "Expected format: <FLOW_NAME>/<DEPLOYMENT_NAME>" in bare.stdout + bare.stderr

    plan(deployed, "sft", at=8, do="wait")
    arguments = ("deployment", "run", "rlhf-pipeline/rlhf-pipeline", "--param", 'sets=["seed=3"]')
    run_id = prefect(deployed, prefect_api, *arguments).stdout.partition("UUID: ")[2].split()[0]
    wait_until((deployed / "waiting").exists)
    prefect(deployed, prefect_api, "flow-run", "cancel", run_id)
    wait_until(lambda: state_of(prefect_api, run_id) == "CANCELLED")
    wait_until(lambda: not any("fake_stages" in line or "dvc" in line for line in processes_in(deployed)), 30)
    assert runs_of(deployed).pipelines()[0].info.status == "KILLED"

    assert "Completed" in prefect(deployed, prefect_api, *arguments, "--watch").stdout
    (pipeline,) = runs_of(deployed).pipelines()
    assert (pipeline.info.status, pipeline.data.tags[ATTEMPTS_TAG]) == ("FINISHED", "2")
    assert pipeline.data.params["seed"] == "3"
    listed = prefect(deployed, prefect_api, "deployment", "ls").stdout
    assert "rlhf-compare/rlhf-compare" in listed
    assert "seed: 3" in (deployed / "params.yaml").read_text()
