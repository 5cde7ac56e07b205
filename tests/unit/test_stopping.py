import os
import signal
import subprocess
import sys
import time

import pytest

from tasks.records import artifacts
from tasks.records.artifacts import write_json
from tasks.records.processes import end_remembered, living, remember_group, start_ticks
from tasks.records.signals import raise_if_asked, signals_raise
from tasks.service.servers import Server, ServerFailed, check_needed, needing


class Asked(KeyboardInterrupt):
    pass


class Dropper:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_was_dropped_is_raised_by_the_next_look():
    passed = []

    def work():
        Dropper()
        passed.append("dropped")
        raise_if_asked()
        passed.append("lost")

    assert _raises(work)
    assert passed == ["dropped"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_signal_raises_where_the_first_was_dropped():
    passed = []

    def work():
        Dropper()
        passed.append("dropped")
        os.kill(os.getpid(), signal.SIGTERM)
        passed.append("lost")

    assert _raises(work)
    assert passed == ["dropped"]


def test_a_second_signal_does_not_break_into_the_clean_up():
    cleaned = []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            cleaned.append(1)

    assert _raises(work)
    assert cleaned == [1]


def _raises(work):
    try:
        with signals_raise(Asked, lambda: None):
            work()
    except Asked:
        return True
    return False


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_group_whose_owner_lives_is_left_alone(tmp_path, sleeper):
    note = tmp_path / "note.json"
    owner = os.getppid()
    ticks = {"group": sleeper.pid, "start_ticks": start_ticks(sleeper.pid)}
    write_json(note, {**ticks, "owner": owner, "owner_start_ticks": start_ticks(owner)})
    assert not end_remembered(note)
    assert living(sleeper.pid) == [sleeper.pid]
    assert note.exists()
    # Another process has the owner's id: the owner itself is gone.
    write_json(note, {**ticks, "owner": owner, "owner_start_ticks": start_ticks(owner) - 1})
    assert end_remembered(note)
    assert not living(sleeper.pid)
    assert not note.exists()


def test_a_second_server_keeps_the_log_of_a_living_one(tmp_path, sleeper):
    log = tmp_path / artifacts.LOGS / "clock.log"
    log.parent.mkdir(parents=True)
    log.write_text("of the first\n", encoding="utf-8")
    note = tmp_path / artifacts.STATE / "clock-1.json"
    remember_group(note, sleeper.pid)
    owner = os.getppid()
    write_json(note, {**artifacts.read_json(note), "owner": owner, "owner_start_ticks": start_ticks(owner)})
    server = Server("clock", tmp_path, ["timeit", "-n", "1", "pass"], 1, "/")
    server.process.wait()
    with needing(server), pytest.raises(ServerFailed, match="clock ended with exit status 0"):
        check_needed()
    server.stop()
    assert log.read_text(encoding="utf-8").startswith("of the first\n")
    assert living(sleeper.pid) == [sleeper.pid]
    assert note.exists()
