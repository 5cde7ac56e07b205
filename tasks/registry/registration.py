"""Registration: the models of a pipeline run become versions, and the policy the challenger if the gate passed it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from rlcore.configs import RegisterConfig
from rlcore.errors import CheckpointError
from tasks.gate import GateReport
from tasks.records.artifacts import (
    CHAMPION_DIR,
    DATA,
    EVALUATE,
    PARAMS,
    PIPELINE,
    POLICY_DIR,
    SAMPLES,
    find_root,
    read_json,
    read_rows,
)
from tasks.records.parameters import load_parameters
from tasks.records.remote import PUSHED_TAG
from tasks.records.tracking import KEY_TAG, md5_tag
from tasks.records.versioning import StageFacts, commit_of, uncommitted
from tasks.registry import store
from tasks.registry.model_card import model_card, parent_card
from tasks.registry.store import CHECKPOINT_TAG, MEASURED_AGAINST_TAG, POLICY_MODEL, REWARD_MODEL, SFT_MODEL
from tasks.serving.packaging import log_copy, log_pointer, size_of, verify

COMMIT_TAG, UNCOMMITTED_TAG, RUN_TAG, FLOW_RUN_TAG = "git.commit", "git.uncommitted", "run_id", "flow_run_id"
PARENTS = {SFT_MODEL: "Model after supervised training, where policies start", REWARD_MODEL: "Reward model"}
"""Registered model → what it is: what policies are made of, in the order of training."""


@dataclass(frozen=True)
class Registered:
    """A version in the registry."""

    name: str
    version: str
    created: bool
    """False where this checkpoint was registered before."""
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
    flow_run_id: str | None = None,
    pushed: bool = False,
) -> Registered:
    """Make SFT model, reward model and policy versions; set the alias `challenger` last and only if the gate passed.

    A checkpoint is registered once. A policy that comes again gets the verdict of its latest evaluation, but for the
    champion, which keeps the one that it was chosen by. So the function can be repeated at any point.

    Args:
        config: settings.
        client: of the tracking server.
        run_id: the run that the policy belongs to.
        key: of the pipeline run.
        facts: of the stages; `policy` and `evaluate` are needed.
        gate: the verdict.
        origin: how the policy was trained, in words.
        root: the checkout; by default the one around the working directory.
        flow_run_id: Prefect's name of the pipeline run.
        pushed: whether the DVC remote has the checkpoints.

    Raises:
        CheckpointError: the checkpoint is not the one that DVC recorded and `evaluate` measured.
    """
    root = root or find_root()
    md5 = _checkpoint_md5(facts)
    verify(root / POLICY_DIR, md5)
    origin_tags = {KEY_TAG: key, **({FLOW_RUN_TAG: flow_run_id} if flow_run_id else {}), **_code(facts, root)}
    backup = {PUSHED_TAG: str(pushed).lower()}
    starts = {SFT_MODEL: _start(client, facts, root)}
    for model in PARENTS:
        if store.STAGES[model] in facts:
            _register_parent(client, model, facts, run_id, key, origin_tags | backup | starts.get(model, {}))
    version = store.with_tags(client, POLICY_MODEL, {CHECKPOINT_TAG: md5})
    created = version is None
    reigning = store.champion(client)
    parents = _parents(client, facts["policy"].deps)
    verdict = {**_evaluation(client, facts), **gate.tags(), **backup}
    card = model_card(
        origin,
        parents={**parents, **({"champion": verdict[MEASURED_AGAINST_TAG]} if MEASURED_AGAINST_TAG in verdict else {})},
        data=_data_of(facts.values()),
        gate=gate,
        metrics=read_json(root / EVALUATE),
        samples=read_rows(root / SAMPLES["evaluate"]),
        curves=_page(client, run_id),
    )
    if version is None:
        made_of = {**_data_tags(facts.values()), **_parent_tags(parents)}
        tags = {**origin_tags, RUN_TAG: run_id, "policy": origin, **made_of, CHECKPOINT_TAG: md5, **verdict}
        version = _create_policy(config, client, run_id, root / POLICY_DIR, md5, tags, card)
    elif store.number_of(version) != store.number_of(reigning):
        _update_verdict(client, version, verdict, card)
    is_challenger = gate.passed and store.number_of(version) != store.number_of(reigning)
    if is_challenger:
        # Seconds have passed since the first look, and an alias is a promise.
        verify(root / POLICY_DIR, md5)
        store.set_challenger(client, version, root)
    return Registered(POLICY_MODEL, str(version.version), created, is_challenger)


def _create_policy(
    config: RegisterConfig,
    client: MlflowClient,
    run_id: str,
    folder: Path,
    md5: str,
    tags: dict[str, str],
    card: str,
) -> ModelVersion:
    store.create_model(client, POLICY_MODEL)
    if size_of(folder) <= config.copy_limit:
        model_id = log_copy(client, run_id, folder, md5, tags)
    else:
        model_id = log_pointer(client, "policy", run_id, tags)
    return client.create_model_version(
        POLICY_MODEL, source=f"models:/{model_id}", run_id=run_id, tags=tags, description=card, model_id=model_id
    )


def _register_parent(
    client: MlflowClient, model: str, facts: Mapping[str, StageFacts], run_id: str, key: str, tags: dict[str, str]
) -> None:
    """Make what a policy is made of a version, as a pointer to DVC, unless its checkpoint is one already."""
    stage, folder = store.STAGES[model], store.FOLDERS[model]
    made = {md5_tag(folder): facts[stage].outs[str(folder)]}
    if store.with_tags(client, model, made) is not None:
        return
    store.create_model(client, model)
    run_id = _run_of(client, run_id, f"{key}/{stage}")
    parents = _parents(client, facts[stage].deps)
    data = _data_tags([facts[stage]])
    tags = {**tags, RUN_TAG: run_id, **data, **made, **_parent_tags(parents)}
    model_id = log_pointer(client, stage, run_id, tags)
    card = parent_card(PARENTS[model], parents=parents, data=_data_of([facts[stage]]), curves=_page(client, run_id))
    client.create_model_version(
        model, source=f"models:/{model_id}", run_id=run_id, tags=tags, description=card, model_id=model_id
    )


def _run_of(client: MlflowClient, pipeline_run_id: str, key: str) -> str:
    """The run with a key, which has the curves of its stage; that of the pipeline where there is none."""
    experiment_id = client.get_run(pipeline_run_id).info.experiment_id
    found = client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
    return str(found[0].info.run_id) if found else pipeline_run_id


def _checkpoint_md5(facts: Mapping[str, StageFacts]) -> str:
    """The md5 of the policy, which must be the one that was evaluated."""
    made, measured = facts["policy"].outs[str(POLICY_DIR)], facts["evaluate"].deps[str(POLICY_DIR)]
    if made != measured:
        raise CheckpointError(f"The policy is {made}, but `evaluate` measured {measured}. Run the pipeline again.")
    return made


def _code(facts: Mapping[str, StageFacts], root: Path) -> dict[str, str]:
    """Tags that say with which code the stages ran: the commit, and which of their files it does not have."""
    commit = commit_of(root)
    if commit is None:
        return {}
    code = {path for each in facts.values() for path in each.deps if not Path(path).is_relative_to(DATA)}
    changed = uncommitted(root, sorted(code | {str(PIPELINE)}))
    return {COMMIT_TAG: commit, **({UNCOMMITTED_TAG: ", ".join(changed)} if changed else {})}


def _start(client: MlflowClient, facts: Mapping[str, StageFacts], root: Path) -> dict[str, str]:
    """Tag of the champion where supervised training began with it: a setting says so, `dvc.lock` does not."""
    begins = Path(load_parameters(root / PARAMS).sft.model_name) == CHAMPION_DIR
    return {name: tag for name, tag in _evaluation(client, facts).items() if begins and name == MEASURED_AGAINST_TAG}


def _evaluation(client: MlflowClient, facts: Mapping[str, StageFacts]) -> dict[str, str]:
    """Tags of the evaluation that the gate judged: its md5, and the champion that it measured."""
    evaluated = facts["evaluate"]
    tags = {md5_tag(path): md5 for path, md5 in evaluated.outs.items()}
    if (md5 := evaluated.deps.get(str(CHAMPION_DIR))) is None:
        return tags
    measured = store.with_tags(client, POLICY_MODEL, {CHECKPOINT_TAG: md5})
    return tags if measured is None else {**tags, MEASURED_AGAINST_TAG: f"{POLICY_MODEL}/{measured.version}"}


def _parents(client: MlflowClient, deps: Mapping[str, str]) -> dict[str, str]:
    """Role → `<model>/<version>` of the models that a stage read."""
    parents = {}
    for model in PARENTS:
        folder = store.FOLDERS[model]
        if md5 := deps.get(str(folder)):
            version = store.with_tags(client, model, {md5_tag(folder): md5})
            if version is not None:
                parents[store.STAGES[model]] = f"{model}/{version.version}"
    return parents


def _parent_tags(parents: Mapping[str, str]) -> dict[str, str]:
    return {f"parent.{role}": version for role, version in parents.items()}


def _data_tags(facts: Iterable[StageFacts]) -> dict[str, str]:
    return {md5_tag(path): md5 for path, md5 in _data_of(facts).items()}


def _data_of(facts: Iterable[StageFacts]) -> dict[str, str]:
    """Data and models that any of the stages read, by path."""
    read = {path: md5 for each in facts for path, md5 in each.deps.items()}
    return {path: md5 for path, md5 in sorted(read.items()) if Path(path).is_relative_to(DATA)}


def _update_verdict(client: MlflowClient, version: ModelVersion, verdict: Mapping[str, str], card: str) -> None:
    """Replace the verdict of an earlier evaluation."""
    stale = {name for name in version.tags if name.startswith("gate.")} | {MEASURED_AGAINST_TAG}
    store.drop_tags(client, version, stale - set(verdict))
    store.tag_version(client, version, verdict)
    client.update_model_version(version.name, version.version, description=card)


def _page(client: MlflowClient, run_id: str) -> str:
    """Where MLflow shows a run, seen from the page of a version."""
    return f"#/experiments/{client.get_run(run_id).info.experiment_id}/runs/{run_id}"
