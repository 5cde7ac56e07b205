"""Registration: the policy becomes a version in the registry, and the challenger if the gate passed it."""

import importlib.metadata
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Object, Property, Schema

import rlcore
from rlcore.configs import RegisterConfig
from rlcore.errors import CheckpointError
from tasks.gate import GateReport
from tasks.records.artifacts import EVALUATE, POLICY_DIR, SAMPLES, content_md5, find_root, read_json, read_rows
from tasks.records.tracking import KEY_TAG, POLICY_MODEL
from tasks.records.versioning import StageFacts, commit_of

CHALLENGER = "challenger"
CHAT_MODEL = Path(__file__).parent / "serving" / "chat_model.py"
REQUIREMENTS = ("mlflow", "numpy", "pandas", "peft", "pydantic", "safetensors", "tokenizers", "torch", "transformers")
"""What a server needs to answer with the policy, beside this library, which is stored with the version."""
DESCRIPTION_LIMIT = 5000
"""Longest description that every registry takes, in characters."""
CARD_MEASURES = (
    "gold",
    "gold_greedy",
    "number_right",
    "reward/score_mean",
    "response/length_mean",
    "response/eos_fraction",
)

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


@dataclass(frozen=True)
class Registered:
    """A version in the registry."""

    name: str
    version: str
    created: bool
    """False where this checkpoint with this evaluation was registered before."""
    challenger: bool
    """Whether the alias `challenger` is on it."""

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


def register(
    config: RegisterConfig,
    *,
    client: MlflowClient,
    run_id: str,
    key: str,
    facts: Mapping[str, StageFacts],
    gate: GateReport,
    origin: str,
    root: Path | None = None,
) -> Registered:
    """Make the policy a version of `rlhf-policy`; set the alias `challenger` last and only if the gate passed.

    A checkpoint that is registered with the same evaluation already is not registered again; its verdict is brought up
    to date. So the function can be repeated at any point.

    Args:
        config: settings.
        client: of the tracking server.
        run_id: the run that the version belongs to.
        key: of the pipeline run.
        facts: of the stages; `policy` and `evaluate` are needed.
        gate: the verdict.
        origin: how the policy was trained, in words.
        root: the checkout; by default the one around the working directory.

    Raises:
        CheckpointError: the checkpoint is not the one that DVC recorded and `evaluate` measured.
    """
    root = root or find_root()
    md5 = _checkpoint_md5(facts)
    folder = root / POLICY_DIR
    _verify(folder, md5)
    tags = {KEY_TAG: key, "run_id": run_id, "policy": origin, **_lineage(facts, root), **gate.tags()}
    version = _existing(client, md5, facts["evaluate"].outs[str(EVALUATE)])
    created = version is None
    if version is None:
        _create_registered_model(client)
        fits = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= config.copy_limit
        model_id = _log_copy(client, run_id, folder, md5, tags) if fits else _log_pointer(client, run_id, tags)
        card = model_card(origin, facts, gate, read_json(root / EVALUATE), read_rows(root / SAMPLES["evaluate"]))
        version = client.create_model_version(
            POLICY_MODEL,
            source=f"models:/{model_id}",
            run_id=run_id,
            tags=tags,
            description=card,
            model_id=model_id,
        )
    else:
        _update_verdict(client, version, gate)
    if gate.passed:
        # Seconds have passed since the first look, and an alias is a promise.
        _verify(folder, md5)
        client.set_registered_model_alias(POLICY_MODEL, CHALLENGER, version.version)
    return Registered(POLICY_MODEL, str(version.version), created, gate.passed)


def model_card(
    origin: str,
    facts: Mapping[str, StageFacts],
    gate: GateReport,
    metrics: Mapping[str, float],
    samples: list[dict[str, Any]],
) -> str:
    """What a reader of the registry wants to know, in Markdown: origin, numbers, verdict, data, answers."""
    lines = [
        f"Policy trained with {origin}.",
        "",
        *_numbers_table(metrics),
        "",
        f"**Gate: {'passed' if gate.passed else 'refused'}**",
        "",
        "| condition | found | bound | |",
        "|---|---|---|---|",
        *(
            f"| {reason.rule} | {'not measured' if reason.found is None else f'{reason.found:.3f}'} | {reason.bound:g} "
            f"| {'passed' if reason.passed else 'refused'} |"
            for reason in gate.reasons
        ),
        "",
        "**Data and parents** (DVC md5)",
        "",
        *(f"- `{path}` {md5}" for path, md5 in _data_of(facts).items()),
        "",
        "**Answers to held-out prompts**",
        "",
        "| prompt | before | after |",
        "|---|---|---|",
        *(f"| {_cell(row['prompt'])} | {_cell(row['before'])} | {_cell(row['after'])} |" for row in samples),
    ]
    while len("\n".join(lines)) > DESCRIPTION_LIMIT:
        lines.pop()
    return "\n".join(lines)


def _numbers_table(metrics: Mapping[str, float]) -> Iterator[str]:
    models = [
        model
        for model in ("sft", "policy", "champion")
        if any(f"{measure}/{model}" in metrics for measure in CARD_MEASURES)
    ]
    yield f"| held-out prompts | {' | '.join(models)} |"
    yield "|---|" + "---|" * len(models)
    for measure in CARD_MEASURES:
        values = [metrics.get(f"{measure}/{model}") for model in models]
        if any(value is not None for value in values):
            yield f"| {measure} | {' | '.join('' if value is None else f'{value:.3f}' for value in values)} |"
    for measure in ("kl/ref_sequence_mean", "reward_model/accuracy"):
        if f"{measure}_low" in metrics:
            low, high = metrics[f"{measure}_low"], metrics[f"{measure}_high"]
            yield f"\n{measure}: {metrics[measure]:.3f}, 95 % interval {low:.3f} to {high:.3f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _checkpoint_md5(facts: Mapping[str, StageFacts]) -> str:
    """The md5 of the policy, which must be the one that was evaluated."""
    made, measured = facts["policy"].outs[str(POLICY_DIR)], facts["evaluate"].deps[str(POLICY_DIR)]
    if made != measured:
        raise CheckpointError(f"The policy is {made}, but `evaluate` measured {measured}. Run the pipeline again.")
    return made


def _verify(folder: Path, md5: str) -> None:
    found = content_md5(folder)
    if found != md5:
        raise CheckpointError(
            f"{folder}: its content is {found}, but dvc.lock says {md5}: it was changed after training. "
            "Restore it with `dvc checkout --force`, or train again."
        )


def _lineage(facts: Mapping[str, StageFacts], root: Path) -> dict[str, str]:
    """Tags that say what the version was made of."""
    commit = commit_of(root)
    paths = {**_data_of(facts), **facts["policy"].outs, **facts["evaluate"].outs}
    return {**{f"dvc.{path}.md5": md5 for path, md5 in paths.items()}, **({"git.commit": commit} if commit else {})}


def _data_of(facts: Mapping[str, StageFacts]) -> dict[str, str]:
    """Data and models that any of the stages read, by path."""
    read = {path: md5 for each in facts.values() for path, md5 in each.deps.items()}
    return {path: md5 for path, md5 in sorted(read.items()) if path.startswith(f"{POLICY_DIR.parts[0]}/")}


def _existing(client: MlflowClient, md5: str, evaluation_md5: str) -> ModelVersion | None:
    """The version of this checkpoint with this evaluation."""
    wanted = {f"dvc.{POLICY_DIR}.md5": md5, f"dvc.{EVALUATE}.md5": evaluation_md5}
    for version in client.search_model_versions(f"name = '{POLICY_MODEL}'"):
        if all(version.tags.get(name) == value for name, value in wanted.items()) and version.status == "READY":
            return version
    return None


def _update_verdict(client: MlflowClient, version: ModelVersion, gate: GateReport) -> None:
    verdict = gate.tags()
    for name in version.tags:
        if name.startswith("gate.") and name not in verdict:
            client.delete_model_version_tag(POLICY_MODEL, version.version, name)
    for name, value in verdict.items():
        client.set_model_version_tag(POLICY_MODEL, version.version, name, value)


def _create_registered_model(client: MlflowClient) -> None:
    try:
        client.get_registered_model(POLICY_MODEL)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(
            POLICY_MODEL,
            description="Policies of the pipeline. `challenger` is the latest that passed the gate; a person makes it "
            "the champion by setting the alias `champion` on its version.",
        )


def _log_copy(client: MlflowClient, run_id: str, folder: Path, md5: str, tags: Mapping[str, str]) -> str:
    """Store the checkpoint with the code that answers with it; the id of the model."""
    experiment_id = client.get_run(run_id).info.experiment_id
    logged = client.create_logged_model(experiment_id, "policy", source_run_id=run_id, tags=dict(tags))
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / "model"
        mlflow.pyfunc.save_model(
            draft,
            python_model=str(CHAT_MODEL),
            artifacts={"policy": str(folder)},
            code_paths=[str(Path(rlcore.__file__).parent)],
            signature=SIGNATURE,
            input_example=EXAMPLE,
            pip_requirements=_requirements(),
            mlflow_model=Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id),
        )
        _verify(draft / "artifacts" / folder.name, md5)
        client.log_model_artifacts(logged.model_id, str(draft))
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


def _log_pointer(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> str:
    """Record a model whose weights stay in DVC; the id of the model."""
    experiment_id = client.get_run(run_id).info.experiment_id
    external = {**tags, "mlflow.model.isExternal": "true"}
    logged = client.create_logged_model(experiment_id, "policy", source_run_id=run_id, tags=external)
    with tempfile.TemporaryDirectory() as draft:
        model = Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
        model.metadata = external
        model.save(str(Path(draft) / "MLmodel"))
        client.log_model_artifacts(logged.model_id, draft)
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


def _requirements() -> list[str]:
    # Builds for one accelerator ("2.13.0+cpu") are not on the package index; their public version is.
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in REQUIREMENTS]
