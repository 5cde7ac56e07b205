"""Whatever ends a run, the next one goes on: one MLflow run for each stage, every point once, nothing left behind."""

import json
import shutil
import signal
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.records.artifacts import STAGES
from tasks.records.tracking import KEY_TAG
from tests.support.checkout import make_checkout, plan, processes_in, rlhf, start_rlhf, wait_until
from tests.support.runs import runs_of

TEN_STEPS = list(range(1, 11))
ACTING = ("demo_data", "validate", "sft", "reward", "ppo", "evaluate")
"""Sections of the stages that run."""


@pytest.fixture
def checkout(tmp_path):
    return make_checkout(tmp_path / "checkout")


def assert_one_complete_run(checkout):
    """One pipeline run, finished, with one finished run for each stage and every point of it once."""
    runs = runs_of(checkout)
    (pipeline,) = runs.pipelines()
    for run in (pipeline, *(runs.stage(pipeline, stage) for stage in STAGES)):
        assert run.info.status == "FINISHED"
    for stage in STAGES:
        assert runs.steps(runs.stage(pipeline, stage), "fake/loss") == TEN_STEPS
    return runs, pipeline


def start_and_wait_in(checkout, section, api):
    plan(checkout, section, at=8, do="wait")
    process = start_rlhf(checkout, "pipeline", "run", api=api)
    wait_until((checkout / "waiting").exists)
    return process


@pytest.mark.long
def test_a_killed_stage_and_a_full_disk_are_tried_again(checkout, prefect_api):
    plan(checkout, "reward", at=5, do="full")
    plan(checkout, "ppo", at=8, do="kill")
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 0, result.stdout
    assert "reward: failed in" in result.stdout
    assert "data/models: No space left on device. Free some disk space" in result.stdout
    assert "policy: its process was killed" in result.stdout
    assert "Traceback" not in result.stdout
    runs, pipeline = assert_one_complete_run(checkout)
    attempts = {stage: runs.stage(pipeline, stage).data.tags["pipeline.attempts"] for stage in STAGES}
    assert attempts == dict.fromkeys(STAGES, "1") | {"reward": "2", "policy": "2"}
    # Killed at step 8 with the state of step 6: the resumed process trained 7 to 10 only.
    assert "resumed at step 6" in (checkout / ".rlhf" / "logs" / "policy.log").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_in_each_stage_then_the_same_command_goes_on(checkout, prefect_api):
    for section in ACTING:
        process = start_and_wait_in(checkout, section, prefect_api)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
        assert processes_in(checkout) == []
    runs = runs_of(checkout)
    assert runs.stage(runs.pipelines()[0], "evaluate").info.status == "KILLED"
    assert rlhf(checkout, "pipeline", "run", api=prefect_api).returncode == 0
    _, pipeline = assert_one_complete_run(checkout)
    assert pipeline.data.tags["pipeline.attempts"] == str(len(ACTING) + 1)


@pytest.mark.slow
def test_kill_9_of_the_command_leaves_nothing_that_the_next_one_does_not_mend(checkout, prefect_api):
    process = start_and_wait_in(checkout, "ppo", prefect_api)
    process.kill()
    process.communicate(timeout=10)
    assert any("fake_stages.py" in line for line in processes_in(checkout)), "the stage outlives its flow at first"
    killed = json.loads((checkout / ".rlhf" / "unfinished.json").read_text())["flow_run_id"]
    assert flow_states(prefect_api, killed) == {"RUNNING", "COMPLETED"}
    # The code changes before the next run: what the killed one logged belongs to other code, and is not gone on with.
    with (checkout / "fake_stages.py").open("a") as code:
        code.write("# changed\n")
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 0, result.stdout
    assert processes_in(checkout) == []
    assert flow_states(prefect_api, killed) == {"CRASHED", "COMPLETED"}
    runs, pipeline = assert_one_complete_run(checkout)
    replaced = [run for run in runs.runs if run.data.tags[KEY_TAG].endswith("/policy/replaced")]
    assert [run.info.status for run in replaced] == ["KILLED"]
    assert "resumed" not in (checkout / ".rlhf" / "logs" / "policy.log").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_second_run_waits_and_sigterm_frees_the_way(checkout, prefect_api):
    first = start_and_wait_in(checkout, "sft", prefect_api)
    second = start_rlhf(checkout, "pipeline", "run", api=prefect_api)
    lines = iter(second.stdout.readline, "")
    assert next(lines).startswith(f"waiting for process {first.pid} on ")
    first.terminate()
    first.communicate(timeout=60)
    assert first.returncode == 143
    said, _ = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert_one_complete_run(checkout)


def flow_states(api, flow_run_id):
    """State types of a flow run and its task runs."""
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(UUID(flow_run_id))
        task_runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id])))
        return {run.state.type.value for run in (flow_run, *task_runs)}


@pytest.mark.slow
@pytest.mark.long
def test_a_forced_stage_runs_from_its_beginning_and_data_of_ones_own_skip_the_demo(checkout, prefect_api):
    assert rlhf(checkout, "pipeline", "run", api=prefect_api).returncode == 0
    shutil.copytree(checkout / "data" / "raw" / "demo", checkout / "mine")
    arguments = ("--set", "validate.source=mine", "--force", "sft")
    result = rlhf(checkout, "pipeline", "run", *arguments, api=prefect_api)
    assert result.returncode == 0, result.stdout
    assert "[1/8] demo_data: skipped, the data are your own" in result.stdout
    assert "[2/8] validate: done in" in result.stdout
    assert "[3/8] sft: done in" in result.stdout
    assert "[4/8] reward: cached in" in result.stdout, "the forced stage made the same content"
    assert "params.yaml changed: validate.source: 'data/raw/demo' -> 'mine'" in result.stdout


@pytest.mark.slow
@pytest.mark.long
def test_what_a_retry_would_not_mend_is_not_retried(checkout, prefect_api):
    plan(checkout, "validate", at=2, do="config")
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 2
    assert "Stopped: validate: fake.key: found 3, expected 4. Change it." in result.stdout
    plan(checkout, "validate", at=2, do="bug")
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 1
    assert "Stopped: validate: KeyError: 'bug'. The stack trace is in .rlhf/logs/validate.log" in result.stdout
    assert "Traceback" not in result.stdout
    runs = runs_of(checkout)
    (pipeline,) = runs.pipelines()
    assert pipeline.info.status == runs.stage(pipeline, "validate").info.status == "FAILED"
    # Two commands, one attempt each.
    assert runs.stage(pipeline, "validate").data.tags["pipeline.attempts"] == "2"


def test_outside_a_checkout_the_pipeline_says_so(tmp_path):
    result = rlhf(tmp_path, "pipeline", "run")
    assert result.returncode == 2
    assert "needs a checkout" in result.stdout


def test_faulty_settings_end_before_anything_starts(checkout):
    result = rlhf(checkout, "pipeline", "run", "--set", "ppo.lamm=1", "--set", "sft.max_steps=-1")
    assert result.returncode == 2
    assert result.stdout.startswith("rlhf: sft.max_steps: found -1.")
    assert "ppo.lamm: unknown key." in result.stdout
    assert not (checkout / ".rlhf" / "logs").exists()


def test_a_prefect_server_that_is_away_is_one_line(checkout):
    result = rlhf(checkout, "pipeline", "run", api="http://127.0.0.1:9/api")
    assert "Prefect at http://127.0.0.1:9/api does not answer. Start it, or unset PREFECT_API_URL." in result.stdout
    assert result.returncode == 75
    assert "Traceback" not in result.stdout
