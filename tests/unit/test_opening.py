"""What a killed run left in Prefect is over before the next one begins."""

from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Running

from tasks.records.tracking import COMPARISON, PIPELINE_RUN, Unfinished, remember_unfinished
from tasks.running import opening


class Server:
    """Prefect, as far as it is asked."""

    def __init__(self, *runs):
        self.runs = {run.id: run for run in runs}
        self.tasks = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read_flow_run(self, run_id):
        if run_id not in self.runs:
            raise ObjectNotFound(None)
        return self.runs[run_id]

    def read_task_runs(self, **filters):
        return self.tasks

    def set_flow_run_state(self, run_id, state, force):
        assert force
        self.runs[run_id].state = state


def flow_run(state):
    return FlowRun(id=uuid4(), flow_id=uuid4(), state=state)


@pytest.mark.parametrize("kind", [PIPELINE_RUN, COMPARISON])
def test_a_killed_run_and_a_killed_comparison_count_as_crashed(tmp_path, monkeypatch, kind):
    killed = flow_run(Running())
    server = Server(killed)
    monkeypatch.setattr(opening, "get_client", lambda sync_client: server)
    remember_unfinished(tmp_path, Unfinished("key", str(killed.id), {}), kind)
    opening._mark_crashed(tmp_path)
    assert killed.state.name == "Crashed"


def test_a_run_that_ended_and_one_of_another_server_are_left_alone(tmp_path, monkeypatch):
    ended = flow_run(Completed())
    server = Server(ended)
    monkeypatch.setattr(opening, "get_client", lambda sync_client: server)
    remember_unfinished(tmp_path, Unfinished("key", str(ended.id), {}))
    remember_unfinished(tmp_path, Unfinished("key", str(uuid4()), {}), COMPARISON)
    opening._mark_crashed(tmp_path)
    assert ended.state.name == "Completed"
