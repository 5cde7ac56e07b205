"""A remote that is away fails no run: it is said before the run, tried again after it, and left."""

import errno
import os

import pytest

from rlcore.errors import ConfigError
from tasks.records import remote, versioning
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


def checkout_with_remote(root, url):
    versioning.prepare(root)
    with (root / ".dvc" / "config").open("a") as config:
        config.write(f"[core]\n    remote = shelf\n['remote \"shelf\"']\n    url = {url}\n")
    return root


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout without git and remotes."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    (tmp_path / "checkout" / ".dvc").mkdir(parents=True)
    return tmp_path / "checkout"


def test_a_remote_that_would_take_everything_and_none_at_all_are_not_mentioned(root, tmp_path):
    versioning.prepare(root)
    assert remote.check_remote(root, pytest.fail)
    assert remote.check_remote(checkout_with_remote(root, tmp_path / "new" / "shelf"), pytest.fail)
    assert not (tmp_path / "new").exists(), "the push makes it"


def test_a_path_that_cannot_be_written_is_one_line_before_the_run(root, tmp_path, monkeypatch):
    checkout_with_remote(root, tmp_path / "shelf")

    def refused(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr(remote.tempfile, "TemporaryFile", refused)
    said = []
    assert not remote.check_remote(root, said.append)
    assert said == [
        f"DVC remote shelf ({tmp_path}/shelf): {tmp_path}: Read-only file system. The run goes on and keeps what it "
        "makes here; mend the remote until it ends, or run `dvc push --run-cache` after it."
    ]


def test_a_remote_elsewhere_says_what_is_wrong(root):
    said = []
    assert not remote.check_remote(checkout_with_remote(root, "s3://bucket/folder"), said.append)
    assert said[0].startswith(
        "DVC remote shelf (s3://bucket/folder): s3 is supported, but requires 'dvc-s3' to be installed"
    )
    assert said[0].count("\n") == 0


def test_settings_that_dvc_does_not_take_are_one_line(root):
    with pytest.raises(ConfigError, match=r"^DVC's settings: [^\n]*Unsupported URL type nosuch://[^\n]*\.$"):
        remote.check_remote(checkout_with_remote(root, "nosuch://bucket/folder"), pytest.fail)


def test_a_remote_that_does_not_answer_is_not_waited_for(root, monkeypatch):
    monkeypatch.setattr(remote, "LOOK_SECONDS", 0.1)
    said = []
    assert not remote.check_remote(checkout_with_remote(root, "https://127.0.0.1:9/folder"), said.append)
    assert "(https://127.0.0.1:9/folder): no answer within 0 s. The run goes on" in said[0]
