"""What `rlhf serve` puts behind HTTP: the checkpoint that was measured, from the registry or from DVC."""

import mlflow
import pytest

from rlcore.configs import RegisterConfig
from rlcore.errors import CheckpointError, DataError
from tasks.records.artifacts import POLICY_DIR, content_md5
from tasks.registry.store import find_version
from tasks.service.model_server import model_folder
from tasks.serving.packaging import stored_model
from tests.support.registry import Registry
from tests.support.workspace import save_model

REQUEST = {"messages": [{"role": "user", "content": "Add 1 and 2."}], "max_tokens": 4, "temperature": 0.0}


def folder_of(registry: Registry, version: str = "1"):
    return model_folder(registry.client, find_version(registry.client, version), registry.root)


def test_a_pointer_is_served_with_the_weights_that_dvc_keeps(registry: Registry):
    registry.keep(POLICY_DIR)
    registry.register(config=RegisterConfig(copy_limit=0))
    md5 = content_md5(registry.root / POLICY_DIR)
    save_model(registry.root / POLICY_DIR, 7)  # the workspace goes on
    folder = folder_of(registry)
    assert content_md5(folder / "artifacts" / "policy") == md5
    answer = mlflow.pyfunc.load_model(str(folder)).predict(REQUEST)
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_a_pointer_whose_weights_are_nowhere_is_not_served(registry: Registry):
    registry.register(config=RegisterConfig(copy_limit=0))
    with pytest.raises(DataError, match="DVC cache"):
        folder_of(registry)


def test_a_copy_is_served_as_it_was_measured_or_not_at_all(registry: Registry):
    registry.register()
    folder = folder_of(registry)
    assert folder == stored_model(registry.client, find_version(registry.client, "challenger"))
    (folder / "artifacts" / "policy" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="the copy in the registry is .*, but .* was measured"):
        folder_of(registry)
