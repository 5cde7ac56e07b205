from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.support.registry import Registry
from tests.support.workspace import make_workspace


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory):
    """An MLflow database with its schema, and an experiment; making one takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        client = MlflowClient(uri)
        yield client, client.create_experiment("tests", (folder / "artifacts").as_uri())


@pytest.fixture
def registry(store, tmp_path: Path):
    """A checkout after `evaluate` and an empty registry."""
    registry = Registry(make_workspace(tmp_path / "checkout"), *store)
    yield registry
    registry.clear()
