"""What a running stage reports is shown at once and logged in batches, and a store that fails loses nothing."""

import pytest
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import OperationalError

from tasks.records import artifacts
from tasks.records.trace import Trace
from tasks.running import following
from tasks.running.following import StageFollower
from tasks.running.progress import LineChecklist
from tasks.service.servers import ServerFailed, needing

FAILURES = [MlflowException("away"), OperationalError("INSERT", {}, Exception("database is locked"))]


class Log:
    """Remembers the steps of each batch; raises `failure` instead while there is one."""

    def __init__(self):
        self.batches, self.failure = [], None

    def rows(self, rows):
        if self.failure is not None:
            raise self.failure
        if rows:
            self.batches.append([row["step"] for row in rows])


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """The trace of a stage sft that runs, its log and checklist, and its follower. Batches are logged at each look."""
    monkeypatch.setattr(following, "FLUSH_SECONDS", 0.0)
    folder = tmp_path / artifacts.scratch("sft") / "key"
    log, checklist = Log(), LineChecklist(lambda text: None)
    follower = StageFollower(tmp_path, "sft", log, checklist)

    class Stage:
        trace = Trace(artifacts.reports(folder))

        def start(self):
            artifacts.write_json(tmp_path / artifacts.running_file("sft"), {"key": "key", "pid": 1})

    running = Stage()
    running.log, running.checklist, running.follower = log, checklist, follower
    return running


def test_nothing_is_read_before_the_stage_says_which_attempt_it_is(stage):
    stage.trace.append(1, {"sft/loss": 2.0})
    stage.follower.look()
    assert stage.log.batches == []
    stage.start()
    stage.follower.look()
    assert stage.log.batches == [[1]]


def test_what_is_new_is_shown_at_once_and_logged_in_batches_and_the_rest_at_the_end(stage, monkeypatch):
    stage.start()
    with stage.follower as follower:
        stage.trace.append(1, {"sft/loss": 2.0})
        follower.look()
        monkeypatch.setattr(following, "FLUSH_SECONDS", 60.0)
        for step in (2, 3):
            stage.trace.append(step, {"sft/loss": 2.0 / step})
            follower.look()
            assert stage.checklist.steps["sft"].position == step
        assert stage.log.batches == [[1]]
    assert stage.log.batches == [[1], [2, 3]]


@pytest.mark.parametrize("failure", FAILURES, ids=["server", "database"])
def test_a_store_that_fails_stops_no_training_and_gets_all_of_it_later(stage, failure):
    stage.start()
    stage.log.failure = failure
    for step in (1, 2):
        stage.trace.append(step, {"sft/loss": 1.0})
        stage.follower.look()
    stage.log.failure = None
    stage.trace.append(3, {"sft/loss": 1.0})
    stage.follower.look()
    assert stage.log.batches == [[1, 2, 3]]


class Ended:
    """A server of which nothing is left."""

    def check(self):
        raise ServerFailed("prefect-server ended")


def test_a_prefect_server_that_ended_stops_the_stage(stage):
    with needing(Ended()), pytest.raises(ServerFailed):
        stage.follower.look()
