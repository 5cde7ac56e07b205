"""`rlhf up` and what it keeps standing: the form, schedules, retraining, a machine that went down, `rlhf down`."""

import json
import os
import signal
import socket
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.records.artifacts import STAGES
from tasks.records.tracking import ATTEMPTS_TAG
from tasks.service.services import MLFLOW, PREFECT, WORKER, Service
from tests.support.checkout import plan, processes_in, wait_until
from tests.support.runs import runs_of
from tests.support.standing import AUDIT, ENDS, NIGHTLY, PIPELINE, flows_named, standing_checkout

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def taken_port():
    """Prefect's usual port belongs to another process."""
    with socket.socket() as other:
        # Where somebody else has it already, all is as it should be.
        with suppress(OSError):
            other.bind(("127.0.0.1", 4200))
        yield


@pytest.fixture(scope="module")
def standing(tmp_path_factory, taken_port):
    """A checkout after `rlhf up`. The tests use it one after the other, in their order."""
    with standing_checkout(tmp_path_factory.mktemp("standing") / "checkout") as standing:
        yield standing


def test_beside_another_server_the_pages_ask_our_own(standing):
    assert not standing.url.endswith(":4200")
    with urllib.request.urlopen(f"{standing.url}/ui-settings") as answer:
        assert json.load(answer)["api_url"] == f"{standing.url}/api"


def test_two_at_once_mend_what_was_killed_and_keep_what_was_paused(standing):
    with standing.client() as client:
        audit = client.read_deployment_by_name(AUDIT)
        client.update_deployment_schedule(audit.id, audit.schedules[0].id, active=False)
        nightly = client.read_deployment_by_name(NIGHTLY)
        client.pause_deployment(nightly.id)
    for kind in (MLFLOW, WORKER):
        os.kill(Service(kind, standing.root).process, signal.SIGKILL)
    both = [standing.begin("rlcore.cli.main", "up") for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in both]
    first, second = sorted(said, key=lambda text: "waiting" in text)
    assert [process.returncode for process in both] == [0, 0], first + second
    assert all(f"starting {title}; its log is" in first for title in ("MLflow", "the worker"))
    assert "starting" not in second
    assert "MLflow: http://127.0.0.1:" in second
    for text in said:
        assert f"Prefect: {standing.url} (ran already)" in text
        assert f"next: prefect deployment run {PIPELINE} --watch" in text
    with standing.client() as client:
        assert not client.read_deployment_by_name(AUDIT).schedules[0].active
        assert client.read_deployment_by_name(NIGHTLY).paused
        client.resume_deployment(nightly.id)
    listed = standing.prefect("deployment", "ls")
    assert all(name in listed for name in (PIPELINE, NIGHTLY, AUDIT, "rlhf-compare/rlhf-compare"))


def test_the_form_reaches_params_and_mlflow_and_reruns_what_it_affects(standing):
    refused = standing.prefect(
        "deployment", "run", PIPELINE, "--param", 'settings={"ppo": {"lam": 2}}', check=False
    )  # fmt: skip
    assert "settings" in refused
    assert "Traceback" not in refused
    assert "Completed" in standing.run()
    assert standing.cache_hits() == []
    assert "Completed" in standing.run()
    assert standing.cache_hits() == list(STAGES)
    standing.assert_in_order()
    chosen = standing.start(algorithm="dpo", settings={"dpo": {"beta": 0.2}})
    standing.wait_for(chosen, *ENDS)
    assert standing.cache_hits() == ["demo_data", "validate", "sft", "reward"]
    assert "beta: 0.2" in (standing.root / "params.yaml").read_text()
    assert "beta: 0.2" in (standing.root / "dvc.lock").read_text()
    pipelines = runs_of(standing.root).pipelines()
    assert [run.data.params["dpo.beta"] for run in pipelines] == ["0.3", "0.3", "0.2"]
    standing.assert_in_order()


def test_data_that_are_not_there_are_named_before_the_first_stage(standing):
    before = (standing.root / "params.yaml").read_bytes()
    run = standing.start(sets=["validate.source=data/raw/mine"])
    standing.wait_for(run, *ENDS)
    message = standing.flow_runs()[-1].state.message
    assert "found no folder data/raw/mine (validate.source). Put demonstrations.jsonl" in message
    assert (standing.root / "params.yaml").read_bytes() == before
    standing.assert_in_order()


def test_a_schedule_fires_and_retraining_is_skipped_until_somebody_adds_data(standing):
    before = len(runs_of(standing.root).runs)
    standing.prefect("deployment", "schedule", "create", NIGHTLY, "--interval", "15")
    wait_until(lambda: "Skipped" in standing.states(), 120)
    scheduled = next(run for run in standing.flow_runs() if run.state.name == "Skipped")
    assert scheduled.auto_scheduled
    assert scheduled.state.message.startswith("nothing new: rlhf-policy version 1 learnt from these data")
    assert len(runs_of(standing.root).runs) == before
    with standing.client() as client:
        nightly = client.read_deployment_by_name(NIGHTLY)
        (often,) = [schedule for schedule in nightly.schedules if not schedule.slug]
        client.delete_deployment_schedule(nightly.id, often.id)

    (standing.root / "pairs.jsonl").write_text('{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}\n')
    (standing.root / "prompts.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    said = standing.rlhf("data", "add", "pairs.jsonl")
    assert "data/raw/own/preferences.jsonl: 1 row added; 1 in all" in said
    assert "still empty: demonstrations.jsonl, prompts.jsonl" in said
    assert "retraining/nightly" not in said
    completed = standing.states().count("Completed")
    assert "retraining/nightly begins" in standing.rlhf("data", "add", "prompts.jsonl")
    wait_until(lambda: standing.states().count("Completed") == completed + 1, 300)
    assert runs_of(standing.root).pipelines()[-1].data.params["validate.source"] == "data/raw/own"
    assert "validate" not in standing.cache_hits()
    standing.assert_in_order()


def test_looks_that_found_nothing_and_runs_to_come_do_not_fill_the_list(standing):
    for _ in range(2):
        last = standing.start(AUDIT)
        standing.wait_for(last, "Unchanged", *ENDS)
    assert [(run.id, run.state.name) for run in standing.listed(flows_named("promotion"))] == [(last, "Unchanged")]
    to_come = [run for run in standing.listed(flows_named("retraining")) if run.state.is_scheduled()]
    assert len(to_come) == 1, "the next night"


def test_after_the_machine_went_down_the_next_run_goes_on_where_it_was(standing):
    plan(standing.root, "dpo", at=8, do="wait")
    standing.start(seed=5)
    wait_until((standing.root / "waiting").exists)
    for process in pids_in(standing.root):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert "it counts as crashed" in standing.rlhf("up")
    assert standing.states()[-1] == "Crashed"
    standing.wait_for(standing.start(seed=5), *ENDS)
    pipeline = runs_of(standing.root).pipelines()[-1]
    assert pipeline.data.tags[ATTEMPTS_TAG] == "2"
    assert "policy" not in standing.cache_hits()
    assert "resumed at step 6" in standing.log("policy")
    standing.assert_in_order()


def pids_in(checkout):
    """Every process of the checkout: servers, worker, flow, DVC, stage."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cwd").resolve() == checkout.resolve():
                found.append(int(folder.name))
    return found


def test_down_cancels_the_run_and_keeps_its_state(standing):
    plan(standing.root, "sft", at=8, do="wait")
    standing.start(seed=6)
    wait_until((standing.root / "waiting").exists)
    said = standing.rlhf("down")
    assert "cancelling the run" in said
    assert "Ended: the worker, MLflow, Prefect." in said
    assert processes_in(standing.root) == []
    assert runs_of(standing.root).pipelines()[-1].info.status == "KILLED"
    assert not (standing.root / "prefect.toml").exists()
    assert standing.rlhf("down") == "Nothing of this checkout was running.\n"
    standing.rlhf("up")
    assert "Cancelled" in standing.states()
    standing.wait_for(standing.start(seed=6), *ENDS)
    assert "resumed at step 6" in standing.log("sft")
    standing.assert_in_order()


def test_a_named_server_that_does_not_answer_is_one_line(standing):
    process = standing.begin("rlcore.cli.main", "up", PREFECT_API_URL="http://127.0.0.1:9/api")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert said == "rlhf: Prefect at http://127.0.0.1:9/api does not answer. Start it, or unset PREFECT_API_URL.\n"


def test_state_that_cannot_be_written_is_one_line(standing):
    services = standing.root / ".rlhf" / "services"
    services.rename(services.with_name("kept"))
    services.write_text("a file where a folder belongs\n")
    try:
        process = standing.begin("rlcore.cli.main", "up")
        said, _ = process.communicate(timeout=60)
    finally:
        services.unlink()
        services.with_name("kept").rename(services)
    assert process.returncode == 2
    (line,) = said.splitlines()
    assert line.startswith("rlhf: ")
    assert ".rlhf/services" in line


def test_notes_of_the_services_are_json_that_a_person_can_read(standing):
    note = json.loads((standing.root / ".rlhf/services/prefect.json").read_text())
    assert note.keys() == {"group", "start_ticks", "port", "settings"}
    assert Service(PREFECT, standing.root).is_up()
