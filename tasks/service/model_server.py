"""A policy behind HTTP: chat messages in, a chat completion out."""

import shutil
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from tasks.records import artifacts, versioning
from tasks.registry.store import checkpoint_md5
from tasks.service.servers import CHAT_PORT, HOST, MLFLOW_HEALTH, Server, free_port
from tasks.serving.packaging import WEIGHTS, checked_copy, is_pointer, save_chat_model


def model_folder(client: MlflowClient, version: ModelVersion, root: Path) -> Path:
    """A version as a model that MLflow serves, on this machine, its checkpoint hashed again.

    A copy in the registry is taken from there; of a pointer the weights come from DVC, into `.rlhf/served/`.

    Raises:
        ConfigError: the pipeline did not register the version.
        CheckpointError: the copy in the registry is damaged or gone.
        DataError: neither the DVC cache nor the remote has the weights.
    """
    md5 = checkpoint_md5(version)
    if not is_pointer(client, version):
        return checked_copy(client, version, md5)
    served = root / artifacts.STATE / "served"
    weights = served / WEIGHTS
    versioning.materialise(md5, weights, root)
    model = served / "model"
    shutil.rmtree(model, ignore_errors=True)
    save_chat_model(model, weights)
    return model


def chat_server(model: Path, root: Path, port: int = CHAT_PORT, host: str = HOST) -> Server:
    """MLflow's scoring server on a model folder, in the environment of this process."""
    port = free_port(port)
    arguments = [
        "mlflow", "models", "serve", "--model-uri", str(model), "--env-manager", "local", "--host", host,
        "--port", str(port), "--timeout", "600",
    ]  # fmt: skip
    return Server("chat", root, arguments, port, MLFLOW_HEALTH)
