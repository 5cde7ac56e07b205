"""How a checkpoint is stored with a version: as a copy that answers requests, or as a pointer to DVC."""

import importlib.metadata
import tempfile
from collections.abc import Mapping
from pathlib import Path

import mlflow.artifacts
import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Object, Property, Schema

import rlcore
from rlcore.errors import CheckpointError
from tasks.records.artifacts import content_md5
from tasks.records.wording import first_line

CHAT_MODEL = Path(__file__).parent / "chat_model.py"
WEIGHTS = "policy"
"""Of the artifacts of a served model: the folder of the checkpoint."""
POINTER_TAG = "mlflow.model.isExternal"
"""Of a model whose weights lie elsewhere."""
REQUIREMENTS = ("mlflow", "numpy", "pandas", "peft", "pydantic", "safetensors", "tokenizers", "torch", "transformers")
"""What a server needs to answer with the policy, beside this library, which is stored with the version."""

SIGNATURE = ModelSignature(
    inputs=Schema(
        [
            ColSpec(
                Array(Object([Property("role", DataType.string), Property("content", DataType.string)])), "messages"
            ),
            ColSpec(DataType.long, "max_tokens", required=False),
            ColSpec(DataType.double, "temperature", required=False),
            ColSpec(DataType.long, "seed", required=False),
        ]
    ),
)
EXAMPLE = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 16, "temperature": 0.0}
"""A request, stored with the version."""


def verify(folder: Path, md5: str) -> None:
    """Hash a checkpoint again.

    Raises:
        CheckpointError: it is not the one that DVC recorded.
    """
    found = content_md5(folder)
    if found != md5:
        raise CheckpointError(
            f"{folder}: its content is {found}, but dvc.lock says {md5}: it was changed after training. "
            "Restore it with `dvc checkout --force`, or train again."
        )


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def log_copy(client: MlflowClient, run_id: str, folder: Path, md5: str, tags: Mapping[str, str]) -> str:
    """Store a checkpoint with the code that answers with it; the id of the model."""
    experiment_id = client.get_run(run_id).info.experiment_id
    logged = client.create_logged_model(experiment_id, "policy", source_run_id=run_id, tags=dict(tags))
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / "model"
        model = Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
        save_chat_model(draft, folder, model)
        verify(draft / "artifacts" / folder.name, md5)
        client.log_model_artifacts(logged.model_id, str(draft))
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


def log_pointer(client: MlflowClient, name: str, run_id: str, tags: Mapping[str, str]) -> str:
    """Record a model whose weights stay in DVC; the id of the model."""
    experiment_id = client.get_run(run_id).info.experiment_id
    external = {**tags, POINTER_TAG: "true"}
    logged = client.create_logged_model(experiment_id, name, source_run_id=run_id, tags=external)
    with tempfile.TemporaryDirectory() as draft:
        model = Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
        model.metadata = external
        model.save(str(Path(draft) / "MLmodel"))
        client.log_model_artifacts(logged.model_id, draft)
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


def save_chat_model(draft: Path, folder: Path, model: Model | None = None) -> None:
    """Lay out a checkpoint as a model that MLflow serves.

    Args:
        draft: where; must not exist.
        folder: the checkpoint. Its copy lies in `artifacts/<name of the folder>` of the draft.
        model: what MLflow knows of it already.
    """
    mlflow.pyfunc.save_model(
        draft,
        python_model=str(CHAT_MODEL),
        artifacts={WEIGHTS: str(folder)},
        code_paths=[str(Path(rlcore.__file__).parent)],
        signature=SIGNATURE,
        input_example=EXAMPLE,
        pip_requirements=_requirements(),
        mlflow_model=model,
    )


def is_pointer(client: MlflowClient, version: ModelVersion) -> bool:
    """Whether a version's weights stay in DVC."""
    return POINTER_TAG in client.get_logged_model(_model_id(version)).tags


def checked_copy(client: MlflowClient, version: ModelVersion, md5: str) -> Path:
    """The model that is stored with a version, on this machine, its checkpoint hashed again.

    Raises:
        CheckpointError: the artifact store does not give it, or the checkpoint has another md5.
    """
    folder = stored_model(client, version)
    weights = folder / "artifacts" / WEIGHTS
    found = content_md5(weights) if weights.is_dir() else "nothing"
    if found != md5:
        raise CheckpointError(
            f"{version.name} version {version.version}: the copy in the registry is {found}, but {md5} was measured. "
            "It was changed after registration: do not use it. Delete the version and run the pipeline again."
        )
    return folder


def stored_model(client: MlflowClient, version: ModelVersion) -> Path:
    """The model that is stored with a version, on this machine; its checkpoint is `artifacts/policy`.

    Raises:
        CheckpointError: the artifact store does not give it.
    """
    try:
        location = client.get_logged_model(_model_id(version)).artifact_location
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=location, tracking_uri=client.tracking_uri))
    except (MlflowException, OSError) as error:
        raise CheckpointError(
            f"{version.name} version {version.version}: its files are not in the artifact store "
            f"({first_line(str(error))}). Restore them, or train the version again with `rlhf reproduce`."
        ) from None


def _model_id(version: ModelVersion) -> str:
    # The store that answers for versions leaves their field model_id empty.
    return str(version.source).removeprefix("models:/")


def _requirements() -> list[str]:
    # Builds for one accelerator ("2.13.0+cpu") are not on the package index; their public version is.
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in REQUIREMENTS]
