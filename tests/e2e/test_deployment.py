"""The deployment of infra/prefect.yaml: a server, a worker, two commands, and a cancelled run that leaves nothing."""

import asyncio
import shutil
import subprocess
import sys

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.support.checkout import (
    FAKE_REGISTER,
    ROOT,
    environment,
    make_checkout,
    plan,
    processes_in,
    start_rlhf,
    wait_until,
)
from tests.support.runs import runs_of

pytestmark = pytest.mark.slow


@pytest.fixture
def deployed(tmp_path, prefect_api):
    """A checkout with a worker, and the flow deployed by the documented command."""
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "prefect.yaml", checkout / "infra")
    (checkout / "flows").mkdir()
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
    async def read():
        async with get_client() as client:
            return (await client.read_flow_run(run_id)).state

    with temporary_settings({PREFECT_API_URL: api}):
        return asyncio.run(read())


def test_a_deployed_run_completes_by_its_full_name_and_the_bare_name_is_refused(deployed, prefect_api):
    bare = prefect(deployed, prefect_api, "deployment", "run", "rlhf-pipeline", check=False)
    assert bare.returncode == 1
    assert "Expected format: <FLOW_NAME>/<DEPLOYMENT_NAME>" in bare.stdout + bare.stderr
    arguments = ("deployment", "run", "rlhf-pipeline/rlhf-pipeline", "--param", 'sets=["seed=3"]', "--watch")
    assert "Completed" in prefect(deployed, prefect_api, *arguments).stdout
    (pipeline,) = runs_of(deployed).pipelines()
    assert pipeline.info.status == "FINISHED"
    assert pipeline.data.params["seed"] == "3"
    assert "seed: 3" in (deployed / "params.yaml").read_text()


def test_a_cancelled_run_ends_its_stage_and_the_command_line_takes_it_up(deployed, prefect_api):
    plan(deployed, "sft", at=8, do="wait")
    said = prefect(deployed, prefect_api, "deployment", "run", "rlhf-pipeline/rlhf-pipeline").stdout
    run_id = said.partition("UUID: ")[2].split()[0]
    wait_until((deployed / "waiting").exists)
    prefect(deployed, prefect_api, "flow-run", "cancel", run_id)
    wait_until(lambda: state_of(prefect_api, run_id).type.value == "CANCELLED")
    wait_until(lambda: not any("fake_stages" in line or "dvc" in line for line in processes_in(deployed)), 30)
    assert runs_of(deployed).pipelines()[0].info.status == "KILLED"
    process = start_rlhf(deployed, "pipeline", "run", api=prefect_api)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    (pipeline,) = runs_of(deployed).pipelines()
    assert (pipeline.info.status, pipeline.data.tags["pipeline.attempts"]) == ("FINISHED", "2")
