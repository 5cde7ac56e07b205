"""The files of infra/ fit each other, the lock file and the flows, without starting anything."""

import importlib
import json
import re
import subprocess
import sys
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mlflow import environment_variables
from prefect import Flow
from prefect.cli.deploy._models import PrefectYamlModel
from ruamel.yaml import YAML

from tests.support.checkout import ROOT

INFRA = ROOT / "infra"
BIN = Path(sys.executable).parent
COMPOSE = YAML(typ="safe").load(INFRA / "compose.yaml")
SERVICES = COMPOSE["services"]
DOCKERFILES = sorted((INFRA / "docker").glob("*.Dockerfile"))
SCRIPTS = [INFRA / "docker" / "worker.sh", ROOT / ".ci" / "run"]
YAML_FILES = [
    *sorted(INFRA.glob("*.yaml")),
    ROOT / "dvc.yaml",
    ROOT / "params.yaml",
    *sorted(ROOT.glob("configs/*.yaml")),
]
YAML_STYLE = {
    "extends": "default",
    "rules": {
        "braces": {"max-spaces-inside": 1},
        "document-start": "disable",
        "indentation": {"indent-sequences": "whatever"},
        "line-length": {"max": 140},
    },
}
UNITS = sorted((INFRA / "systemd").glob("*.service"))
DEPLOYMENTS = YAML(typ="safe").load(INFRA / "prefect.yaml")["deployments"]


def pins(path: Path) -> dict[str, str]:
    """Package to version of a file of exact versions; any other line but a comment is a fault."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def settings(path: Path) -> dict[str, str]:
    """Variables of an environment file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split()))
        for name, _, rest in (line.partition(" ") for line in joined.splitlines())
        if name
    ]


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(path)
    return parser


def found_by(program: str, *arguments: str | Path) -> str:
    """What a linter prints; nothing where it ends well."""
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def is_pinned(image: str) -> bool:
    return re.search(r":v?\d+\.\d+", image) is not None


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_linter_finds_nothing_in_a_dockerfile(dockerfile):
    assert found_by("hadolint", dockerfile) == ""


def test_a_linter_finds_nothing_in_the_shell_scripts():
    assert found_by("shellcheck", *SCRIPTS) == ""


def test_a_linter_finds_nothing_in_the_yaml_files():
    assert found_by("yamllint", "--strict", "--config-data", json.dumps(YAML_STYLE), *YAML_FILES) == ""


def test_compose_is_what_its_schema_says():
    assert found_by("check-jsonschema", "--builtin-schema", "vendor.compose-spec", INFRA / "compose.yaml") == ""


def test_the_deployments_are_what_prefect_reads_and_no_key_is_passed_over():
    document = YAML(typ="safe").load(INFRA / "prefect.yaml")
    read = PrefectYamlModel.model_validate(document).model_dump(by_alias=True, exclude_unset=True)
    assert set(document) - set(read) == {"definitions"}, "these stand there to be repeated"
    for written, deployment in zip(document["deployments"], read["deployments"], strict=True):
        assert set(deployment) == set(written), written["name"]


def test_every_variable_of_compose_is_explained_in_the_example_and_none_is_left_over():
    used = set(re.findall(r"\$\{(\w+)", (INFRA / "compose.yaml").read_text()))
    assert used == set(settings(INFRA / ".env.example"))


def test_the_examples_hold_no_secret_and_what_is_copied_from_them_stays_out_of_git_and_images():
    for example in (INFRA / ".env.example", INFRA / "systemd" / "environment.example"):
        values = settings(example)
        secrets = {name for name in values if re.search("PASSWORD|SECRET", name)}
        assert secrets
        assert {values[name] for name in secrets} == {"change-me"}
        addresses = [value for value in values.values() if "@" in value]
        assert all(":change-me@" in value for value in addresses)
    assert "infra/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "infra/.env" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_pinned_image_restarts_and_listens_on_this_machine_alone(name):
    service = SERVICES[name]
    assert is_pinned(service["image"])
    assert "restart" in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert not service.get("privileged")
    if "build" in service:
        assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_it_needs(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        needed = SERVICES[other]
        if how["condition"] == "service_healthy":
            assert needed["healthcheck"]["test"][0] == "CMD", other
        else:
            assert how["condition"] == "service_completed_successfully"
            assert needed["restart"].startswith("on-failure"), other


def test_what_a_service_calls_by_name_is_a_service_that_it_waits_for():
    for name, service in SERVICES.items():
        called = {
            host
            for value in service["environment"].values()
            for host in re.findall(r"(?://|@)([a-z]\w*):\d+", str(value))
        }
        assert called <= {*SERVICES}, name
        needed = set(service.get("depends_on", {}))
        waited = needed | {each for other in needed for each in SERVICES[other].get("depends_on", {})} | {"s3"}
        assert called <= waited, name


def test_mlflow_may_be_asked_by_its_name_in_compose():
    allowed = SERVICES["mlflow"]["environment"]["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    address = SERVICES["worker-cpu"]["environment"]["MLFLOW_TRACKING_URI"].removeprefix("http://")
    assert address in allowed


def test_pages_behind_a_proxy_may_be_named_for_reading_and_for_clicks():
    settings_of_mlflow = SERVICES["mlflow"]["environment"]
    assert "${MLFLOW_ALLOWED_HOSTS}" in settings_of_mlflow["MLFLOW_SERVER_ALLOWED_HOSTS"]
    assert settings_of_mlflow["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == "${MLFLOW_ALLOWED_ORIGINS:-}"
    for name in ("MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"):
        assert hasattr(environment_variables, name), "MLflow reads it"


def test_only_the_gpu_worker_asks_for_gpus_and_each_worker_has_a_profile_of_its_own():
    profiles = {name: service.get("profiles") for name, service in SERVICES.items() if name.startswith("worker")}
    assert profiles == {"worker-cpu": ["cpu"], "worker-gpu": ["gpu"]}
    reserving = [name for name, service in SERVICES.items() if "reservations" in json.dumps(service)]
    assert reserving == ["worker-gpu"]
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_what_compose_mounts_and_runs_is_there():
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (INFRA / source).exists(), source
    (start,) = SERVICES["worker-cpu"]["command"]
    assert (ROOT / start).stat().st_mode & 0o111


def test_versions_are_those_of_the_lock_file():
    lock = pins(ROOT / "requirements.lock")
    assert SERVICES["prefect"]["image"].startswith(f"prefecthq/prefect:{lock['prefect']}-")
    assert str(YAML(typ="safe").load(INFRA / "prefect.yaml")["prefect-version"]) == lock["prefect"]
    for name in ("requirements.txt", "requirements-test.txt"):
        assert not pins(INFRA / name).keys() & lock.keys(), "one place for each version"
    assert {"dvc-s3", "psycopg2-binary", "boto3"} <= pins(INFRA / "requirements.txt").keys()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_pinned_locked_and_not_run_by_root(dockerfile):
    lines = instructions(dockerfile)
    bases = [rest for name, rest in lines if name == "FROM"]
    assert bases
    assert all(is_pinned(base) for base in bases)
    assert [rest for name, rest in lines if name == "USER"][-1].isdigit()
    installs = [
        step for name, rest in lines if name == "RUN" for step in rest.split("&& ") if step.startswith("pip install")
    ]
    assert installs
    for step in installs:
        assert "requirements.lock" in step or step.strip() == "pip install --no-deps --editable .", step


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_not_left_out(dockerfile):
    left_out = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for name, rest in instructions(dockerfile):
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert not any(fnmatch(source, pattern) for pattern in left_out), source
        if name == "CMD" and json.loads(rest)[0].startswith("infra/"):
            assert (ROOT / json.loads(rest)[0]).is_file()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_again_and_its_variables_are_explained(path):
    known = settings(INFRA / "systemd" / "environment.example")
    service = unit(path)["Service"]
    assert service["Restart"] == "always"
    assert service["EnvironmentFile"] == "%h/.config/rlhf/environment"
    used = re.findall(r"\$\{?(\w+)", service["ExecStart"])
    assert "RLHF_CHECKOUT" in used
    assert set(used) <= {*known, "PWD", "PATH"}
    assert unit(path)["Install"]["WantedBy"] == "default.target"
    needed = " ".join(unit(path)["Unit"].get(name, "") for name in ("After", "Wants")).split()
    ours = {each.name for each in UNITS}
    assert {name for name in needed if name.startswith("rlhf-")} <= ours


def test_stopping_the_worker_ends_every_process_of_a_stage():
    service = unit(INFRA / "systemd" / "rlhf-worker.service")["Service"]
    assert service["KillMode"] == "control-group"
    # A stage gets 15 seconds to save its state, and the worker some to notice.
    assert int(service["TimeoutStopSec"]) >= 30


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_the_entrypoint_of_a_deployment_is_a_flow_that_takes_its_parameters(deployment):
    path, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(flow, Flow)
    assert set(deployment.get("parameters") or {}) <= set(flow.parameters.properties)


def test_the_page_names_only_files_that_exist():
    text = (INFRA / "README.md").read_text()
    named = set(re.findall(r"\binfra/[\w./-]*\w", text)) - {"infra/.env"}
    assert "infra/compose.yaml" in named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
