"""What a version was made of, as far back as the registry knows."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from pydantic import BaseModel
from rich.markup import escape
from rich.tree import Tree

from tasks.records.artifacts import CHAMPION_DIR, DATA, METRICS
from tasks.records.parameters import SECTIONS
from tasks.records.tracking import KEY_TAG, flatten, md5_tag, tagged_md5
from tasks.registry.registration import COMMIT_TAG, FLOW_RUN_TAG, UNCOMMITTED_TAG
from tasks.registry.store import (
    FOLDERS,
    GATE_TAG,
    MEASURED_AGAINST_TAG,
    POLICY_MODEL,
    STAGES,
    find_version,
    numbered,
)

MODELS = {str(path) for path in (*FOLDERS.values(), CHAMPION_DIR)}
SHOWN_MD5 = 12
"""Characters of an md5 in the terminal."""


def ancestry(client: MlflowClient, name: str) -> dict[str, Any]:
    """A version of the policy and what it was made of.

    Args:
        client: of the registry.
        name: number or alias.

    Returns:
        model, version, aliases, md5 (of the checkpoint), made_by, gate, measured_against, code (commit, uncommitted),
        runs (pipeline, flow_run, mlflow), data (path to md5), settings (of its stage), parents (role to the same).

    Raises:
        ConfigError: no such version.
    """
    return _describe(client, find_version(client, name))


def tree(found: Mapping[str, Any], role: str = "") -> Tree:
    """An ancestry for the terminal. Settings are those that differ from the defaults."""
    aliases = f" ({', '.join(found['aliases'])})" if found["aliases"] else ""
    label = f"{role}[bold]{found['model']} version {found['version']}[/bold]{aliases}"
    node = Tree(label, highlight=False)
    for line in _lines(found):
        node.add(escape(line))
    for parent, origin in found["parents"].items():
        node.add(tree(origin, f"{parent}: ") if "model" in origin else escape(f"{parent}: {origin['missing']}"))
    return node


def _describe(client: MlflowClient, version: ModelVersion) -> dict[str, Any]:
    tags = version.tags
    is_policy = version.name == POLICY_MODEL
    data = {path: md5 for path, md5 in sorted(tagged_md5(tags).items()) if _is_data(path)}
    roles = ("sft", "reward") if is_policy else ("sft", "champion")
    return {
        "model": version.name,
        "version": str(version.version),
        "aliases": list(version.aliases),
        "md5": tags.get(md5_tag(FOLDERS[version.name])),
        "made_by": tags.get("policy"),
        "gate": {"true": "passed", "false": "refused"}.get(tags.get(GATE_TAG, "")),
        "measured_against": tags.get(MEASURED_AGAINST_TAG) if is_policy else None,
        "code": {"commit": tags.get(COMMIT_TAG), "uncommitted": tags.get(UNCOMMITTED_TAG)},
        "runs": {"pipeline": tags.get(KEY_TAG), "flow_run": tags.get(FLOW_RUN_TAG), "mlflow": version.run_id},
        "data": data,
        "settings": _settings(client, version),
        "parents": {role: _parent(client, tags[f"parent.{role}"]) for role in roles if f"parent.{role}" in tags},
    }


def _parent(client: MlflowClient, name: str) -> dict[str, Any]:
    model, _, number = name.rpartition("/")
    version = numbered(client, model, number)
    return {"missing": f"{name} is not in the registry any longer"} if version is None else _describe(client, version)


def _is_data(path: str) -> bool:
    return Path(path).is_relative_to(DATA) and not Path(path).is_relative_to(METRICS) and path not in MODELS


def _settings(client: MlflowClient, version: ModelVersion) -> dict[str, str]:
    """Settings of the stage that made a version, by name, as its run noted them; empty where the run is gone."""
    try:
        params: dict[str, str] = client.get_run(str(version.run_id)).data.params
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return {}
    if "algorithm" not in params:
        return dict(sorted(params.items()))
    section = _section(version.name, params["algorithm"])
    own = {name.removeprefix(f"{section}."): value for name, value in params.items() if name.startswith(f"{section}.")}
    shared = {name: value for name, value in params.items() if name in ("algorithm", "seed", "reward_function")}
    return {**shared, **dict(sorted(own.items()))}


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found["made_by"]:
        against = f", measured against {found['measured_against']}" if found["measured_against"] else ""
        yield f"trained with {found['made_by']}; gate: {found['gate'] or 'not asked'}{against}"
    yield f"checkpoint {(found['md5'] or 'unknown')[:SHOWN_MD5]}"
    code = found["code"]
    changed = f", with changes that it does not have: {code['uncommitted']}" if code["uncommitted"] else ""
    yield f"git commit {(code['commit'] or 'none')[:SHOWN_MD5]}{changed}"
    yield f"flow run {found['runs']['flow_run'] or found['runs']['pipeline']}, MLflow run {found['runs']['mlflow']}"
    for path, md5 in found["data"].items():
        yield f"{path} {md5[:SHOWN_MD5]}"
    differing = _unlike_defaults(found)
    if not found["settings"]:
        yield "settings: not recorded"
    else:
        yield f"settings unlike the defaults: {', '.join(differing)}" if differing else "settings: the defaults"


def _unlike_defaults(found: Mapping[str, Any]) -> list[str]:
    settings = found["settings"]
    section = _section(found["model"], settings.get("algorithm", "ppo"))
    fields = {name: field for name, field in SECTIONS[section].model_fields.items() if not field.is_required()}
    defaults = flatten({name: _plain(field.get_default(call_default_factory=True)) for name, field in fields.items()})
    return [f"{name} {value}" for name, value in settings.items() if defaults.get(name) != value]


def _section(model: str, algorithm: str) -> str:
    """The section of params.yaml that a model is trained with."""
    return algorithm if model == POLICY_MODEL else STAGES[model]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
