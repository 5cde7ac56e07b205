"""A remote that is away fails no run: it is tried again, said, and left."""

import pytest

from tasks.records import remote
from tasks.records.versioning import Transient


@pytest.fixture
def attempts(monkeypatch):
    """What each attempt to push gives: True, False or an exception; taken from the front."""
    outcomes = []

    def push(root, *, environment, while_running):
        outcome = outcomes.pop(0)
        if callable(outcome):
            outcome(while_running)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(remote.versioning, "push", push)
    monkeypatch.setattr(remote, "RETRY_DELAYS", (0.0, 0.0))
    return outcomes


def test_a_push_that_fails_once_is_tried_again(attempts, tmp_path):
    attempts += [Transient("failed to connect to s3. More in push.log."), True]
    said = []
    assert remote.push_all(tmp_path, said.append)
    assert said == ["dvc push: failed to connect to s3. More in push.log. Trying again in 0 s."]


def test_a_remote_that_stays_away_is_said_and_the_run_goes_on(attempts, tmp_path):
    attempts += [Transient("no route. More in push.log.")] * 3
    said = []
    assert not remote.push_all(tmp_path, said.append)
    assert len(said) == 3
    assert said[-1].endswith("The version is registered all the same; run `dvc push --run-cache` before the next run.")


def test_without_a_remote_nothing_is_said(attempts, tmp_path):
    attempts += [False]
    assert not remote.push_all(tmp_path, pytest.fail)


def test_an_attempt_that_takes_too_long_counts_as_failed(attempts, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "LIMIT_SECONDS", -1.0)
    attempts += [lambda while_running: while_running()] * 3
    said = []
    assert not remote.push_all(tmp_path, said.append)
    assert "it took more than -1 s." in said[0]
