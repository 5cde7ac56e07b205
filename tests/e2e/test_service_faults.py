"""A standing service in which things are killed, cancelled or take too long; each run ends clear, the next goes on."""

import os
import signal

import pytest

from tasks.records.artifacts import RUN_LOCK, STAGES
from tasks.records.processes import owner_process
from tasks.records.tracking import ATTEMPTS_TAG, KEY_TAG
from tasks.registry.store import POLICY_MODEL
from tasks.service.resources import limit_name
from tasks.service.services import WORKER, Service
from tests.support.checkout import plan, wait_until
from tests.support.runs import runs_of
from tests.support.standing import AUDIT, ENDS, GPU, standing_checkout

pytestmark = pytest.mark.long

ACTING = ("demo_data", "validate", "sft", "reward", "ppo", "evaluate")
"""Sections of the stages, in their order."""


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A checkout after `rlhf up`, whose audit is paused. The tests use it one after the other."""
    with standing_checkout(tmp_path_factory.mktemp("faults") / "checkout") as standing:
        with standing.client() as client:
            client.pause_deployment(client.read_deployment_by_name(AUDIT).id)
        yield standing


def start_and_wait_in(standing, section, **parameters):
    plan(standing.root, section, at=8, do="wait")
    run = standing.start(**parameters)
    wait_until((standing.root / "waiting").exists)
    return run


def assert_resumed(standing, seed, attempts):
    """One run of this seed, finished; each of its stages went on from the state of step 6, and all is there once."""
    runs = runs_of(standing.root)
    (pipeline,) = (run for run in runs.pipelines() if run.data.params["seed"] == str(seed))
    assert (pipeline.info.status, pipeline.data.tags[ATTEMPTS_TAG]) == ("FINISHED", str(attempts))
    versions = runs.client.search_model_versions(f"name = '{POLICY_MODEL}'")
    assert [version.tags[KEY_TAG] for version in versions].count(pipeline.data.tags[KEY_TAG]) == 1
    for stage in STAGES:
        assert "resumed at step 6" in standing.log(stage)
        # The next test reads its own.
        (standing.root / ".rlhf" / "logs" / f"{stage}.log").unlink()
    standing.assert_in_order()


def assert_completes_what_each_stage_began(standing, seed):
    """After a kill in each stage one more run completes, all under one key."""
    run = standing.start(seed=seed)
    standing.wait_for(run, *ENDS)
    assert standing.state(run) == "Completed"
    # Of each stage its last attempt counts: what the killed runs had finished came from the cache.
    assert standing.cache_hits() == list(STAGES[:-1])
    assert_resumed(standing, seed, attempts=len(ACTING) + 1)


def test_kill_9_of_each_stage_is_tried_again_within_the_run(standing):
    for section in ACTING:
        plan(standing.root, section, at=8, do="kill")
    run = standing.start(seed=1)
    standing.wait_for(run, *ENDS)
    assert standing.state(run) == "Completed"
    assert standing.cache_hits() == []
    assert_resumed(standing, seed=1, attempts=1)


def test_kill_9_of_the_flow_in_each_stage_then_the_next_run_goes_on(standing):
    for section in ACTING:
        run = start_and_wait_in(standing, section, seed=2)
        os.kill(owner_process(standing.root / RUN_LOCK), signal.SIGKILL)
        standing.wait_for(run, *ENDS)
        assert standing.state(run) == "Crashed"
    assert_completes_what_each_stage_began(standing, seed=2)


def test_kill_9_of_the_worker_in_each_stage_then_the_next_run_goes_on(standing):
    for section in ACTING:
        run = start_and_wait_in(standing, section, seed=3)
        os.kill(Service(WORKER, standing.root).process, signal.SIGKILL)
        said = standing.rlhf("up")
        assert "it counts as crashed" in said
        assert "starting the worker" in said
        assert standing.state(run) == "Crashed"
        assert standing.trainers() == []
    assert_completes_what_each_stage_began(standing, seed=3)


def test_a_second_run_waits_for_the_first_and_both_complete(standing):
    first = start_and_wait_in(standing, "sft", seed=4)
    second = standing.start(seed=4)
    standing.wait_for(second, "AwaitingConcurrencySlot")
    standing.release()
    for run in (first, second):
        standing.wait_for(run, *ENDS)
        assert standing.state(run) == "Completed"
    assert standing.cache_hits() == list(STAGES)
    standing.assert_in_order()


def test_cancelling_ends_the_whole_tree_and_frees_the_gpu(standing):
    with standing.gpu():
        run = start_and_wait_in(standing, "sft", seed=5)
        assert standing.active_slots()[limit_name()] == 1
        assert standing.visible_gpus() == {GPU}
        standing.prefect("flow-run", "cancel", str(run))
        standing.wait_for(run, "Cancelled")
        wait_until(lambda: standing.trainers() == [], 30)
        wait_until(lambda: standing.active_slots() == {}, 30)
        assert runs_of(standing.root).pipelines()[-1].info.status == "KILLED"
        run = standing.start(seed=5)
        standing.wait_for(run, *ENDS)
    assert standing.state(run) == "Completed"
    assert "resumed at step 6" in standing.log("sft")
    standing.assert_in_order()


def test_a_stage_beyond_its_time_is_ended_with_its_tree_and_not_repeated(standing):
    with standing.gpu():
        plan(standing.root, "reward", at=8, do="wait")
        run = standing.start(seed=6, sets=["resources.reward.timeout_minutes=0.5"])
        standing.wait_for(run, *ENDS)
        assert standing.state(run) == "Failed"
        with standing.client() as client:
            message = client.read_flow_run(run).state.message
        assert "reward: ended after its limit of 0.5 min (resources.reward.timeout_minutes)" in message
        assert standing.trainers() == []
        assert standing.active_slots() == {}
        pipeline = runs_of(standing.root).pipelines()[-1]
        stage = runs_of(standing.root).stage(pipeline, "reward")
        assert (pipeline.info.status, stage.info.status, stage.data.tags[ATTEMPTS_TAG]) == ("FAILED", "FAILED", "1")
        run = standing.start(seed=6, sets=["resources.reward.timeout_minutes=null"])
        standing.wait_for(run, *ENDS)
    assert standing.state(run) == "Completed"
    assert "resumed at step 6" in standing.log("reward")
    standing.assert_in_order()


def test_the_gpu_of_a_killed_flow_comes_back(standing):
    with standing.gpu():
        run = start_and_wait_in(standing, "ppo", seed=7)
        os.kill(owner_process(standing.root / RUN_LOCK), signal.SIGKILL)
        standing.wait_for(run, "Crashed")
        assert standing.active_slots() == {limit_name(): 1}, "until the lease is over"
        run = standing.start(seed=7)
        standing.wait_for(run, *ENDS)
    assert standing.state(run) == "Completed"
    assert "resumed at step 6" in standing.log("policy")
    standing.assert_in_order()
