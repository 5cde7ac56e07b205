"""Which begun runs `rlhf up` counts as lost. Prefect is an object that remembers; processes are real."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tasks.service import deployments


@pytest.fixture
def flow():
    """A process that looks like one of Prefect's."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "prefect.engine"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def begun(monkeypatch, flow):
    """Runs that have begun on the server: one that lives, one whose process is gone, one that has none yet."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    runs = [
        SimpleNamespace(id=name, name=name, infrastructure_pid=process)
        for name, process in (("lives", str(flow.pid)), ("gone", str(gone.pid)), ("taken", None))
    ]
    states = {}
    client = SimpleNamespace(set_flow_run_state=lambda run, state, force: states.update({run: state.name}))
    monkeypatch.setattr(deployments, "get_client", lambda sync_client: nullcontext(client))
    monkeypatch.setattr(deployments, "_begun", lambda client: runs)
    return states


def test_beside_a_worker_only_a_run_without_its_process_is_lost(begun, flow):
    assert deployments.mark_lost_runs() == ["gone"]
    assert begun == {"gone": "Crashed"}
    assert flow.poll() is None


def test_without_a_worker_every_run_is_lost_and_none_is_left_alone_with_a_gpu(begun, flow):
    assert deployments.end_begun_runs() == ["lives", "gone", "taken"]
    assert set(begun.values()) == {"Crashed"}
    assert flow.wait(10) != 0
