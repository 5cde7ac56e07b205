"""What MLflow's store holds after retries, numbers that are none, changed settings, threads and a resume."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import mlflow
import pytest

from tasks.records import artifacts
from tasks.records.trace import Trace
from tasks.records.tracking import ATTEMPTS_TAG, Tracker


@pytest.fixture
def tracker(store, tmp_path):
    """Of runs of this test alone."""
    return Tracker(tmp_path, experiment=f"tracking-{tmp_path.name}")


def runs_in(tracker):
    return tracker.client.search_runs([tracker.experiment_id])


def points(tracker, run, metric):
    """(step, value) of a metric, in the order of steps."""
    history = tracker.client.get_metric_history(run.info.run_id, metric)
    return sorted((point.step, point.value) for point in history)


def test_two_failed_attempts_and_a_good_one_are_one_finished_run(tracker):
    for status in ("FAILED", "FAILED", "FINISHED"):
        tracker.open_run("flow-run/sft", "sft").close(status)
    (run,) = runs_in(tracker)
    assert run.info.status == "FINISHED"
    assert run.data.tags[ATTEMPTS_TAG] == "3"


def test_of_nan_infinity_and_one_the_one_is_stored_and_the_others_are_named(tracker, tmp_path):
    trace = Trace(tmp_path / "trace")
    trace.append(3, {"loss": math.nan, "kl": math.inf, "reward": 1.0})
    tracker.open_run("key", "sft").rows(artifacts.read_rows(tmp_path / "trace"))
    (run,) = runs_in(tracker)
    assert run.data.metrics == {"loss_non_finite": 1.0, "kl_non_finite": 1.0, "reward": 1.0}
    assert points(tracker, run, "reward") == [(3, 1.0)]
    # The file is JSON as the standard has it, which knows neither NaN nor Infinity.
    json.loads((tmp_path / "trace").read_text(), parse_constant=pytest.fail)


def test_a_run_that_goes_on_with_another_learning_rate_keeps_the_old_one_and_says_the_new(tracker):
    tracker.open_run("key", "sft").params({"learning_rate": 1e-5, "resume_from": None})
    tracker.open_run("key", "sft").params({"learning_rate": 5e-6, "resume_from": "/home/a/checkpoint-5"})
    (run,) = runs_in(tracker)
    assert run.data.params == {"learning_rate": "1e-05", "resume_from": "null"}
    resumed = {name: value for name, value in run.data.tags.items() if name.startswith("resumed.")}
    assert resumed == {"resumed.learning_rate": "5e-06", "resumed.resume_from": "/home/a/checkpoint-5"}


def test_what_a_worker_thread_logs_stands_in_the_one_run(tracker):
    log = tracker.open_run("key", "sft")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda step: log.rows([{"step": step, "time": 0.0, "loss": 1 / step}]), (1, 2, 4)))
    log.close("FINISHED")
    (run,) = runs_in(tracker)
    assert points(tracker, run, "loss") == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert mlflow.active_run() is None, "there is no run that a thread could lose"


def test_after_a_crash_at_7_with_a_checkpoint_of_5_each_step_up_to_8_is_stored_once(tracker, tmp_path):
    trace = Trace(tmp_path / "trace")
    for step in range(1, 8):
        trace.append(step, {"loss": float(step)})
    tracker.open_run("key", "sft").rows(artifacts.read_rows(tmp_path / "trace"))
    resumed = Trace(tmp_path / "trace")
    for step in range(6, 9):
        resumed.append(step, {"loss": float(step)})
    tracker.open_run("key", "sft").rows(artifacts.read_rows(tmp_path / "trace"))
    (run,) = runs_in(tracker)
    assert points(tracker, run, "loss") == [(step, float(step)) for step in range(1, 9)]
    assert run.data.metrics["loss"] == 8.0
