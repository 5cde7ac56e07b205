"""One Prefect server for all tests of this folder."""

import os

import pytest

from tasks.service.servers import prefect_server, running


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory):
    """Address of a Prefect API on a state of its own."""
    root = tmp_path_factory.mktemp("prefect")
    settings = {"PREFECT_HOME": str(root), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with running(prefect_server(root)) as server:
            server.wait()
            yield f"{server.url}/api"
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
