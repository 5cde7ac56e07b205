"""Lock files of which several or one are held, their owner, and processes that end."""

import os
import signal
import subprocess
import sys
import time

from tasks.records.processes import end_process, held, held_some, owner_process


def test_all_the_locks_that_are_asked_for_are_held_or_none(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    with held(paths[1]), held_some(paths, 2) as taken:
        assert taken == [paths[0], paths[2]]
        assert [owner_process(path) for path in paths] == [os.getpid()] * 3
    with held_some(paths, 1):
        assert [owner_process(path) for path in paths] == [os.getpid(), None, None]
    assert [owner_process(path) for path in paths] == [None] * 3


def test_a_waiting_process_holds_nothing_meanwhile(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    program = (
        "import sys; from pathlib import Path; from tasks.records.processes import held_some\n"
        "with held_some([Path(sys.argv[1]), Path(sys.argv[2])], 2, lambda owner: print('waiting', flush=True)):\n"
        "    print('held', flush=True)\n"
    )
    with held(paths[0]):
        other = subprocess.Popen([sys.executable, "-c", program, *map(str, paths)], stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "waiting\n"
        while owner_process(paths[1]) is not None:
            time.sleep(0.01)
        with held(paths[1]):
            pass
    assert other.communicate(timeout=30) == ("held\n", None)


def test_a_process_that_does_not_listen_is_killed():
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    process.stdout.readline()
    end_process(process.pid, grace=0.2)
    assert process.wait(10) == -signal.SIGKILL
    end_process(process.pid)
