"""The whole pipeline with real stages on PostgreSQL and S3: a deployment, a worker, a version that loads from there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.records import artifacts, versioning
from tasks.records.remote import check_remote
from tests.support.checkout import ROOT, environment, wait_until
from tests.support.services import START_SECONDS, postgres, s3_store, served

pytestmark = [pytest.mark.infra, pytest.mark.slow]

BIN = str(Path(sys.executable).parent)
COPIED = ("flows", "infra", "rlcore", "tasks", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore")
TINY = {
    "demo_data.demonstrations": 400,
    "demo_data.preference_pairs": 400,
    "demo_data.held_out_pairs": 40,
    "sft.max_steps": 20,
    "reward.num_epochs": 1,
    "reward.reference_samples": 16,
    "ppo.batch_size": 16,
    "ppo.mini_batch_size": 8,
    "ppo.num_iterations": 2,
    "ppo.eval_every": 1,
    "ppo.eval_prompts": 8,
    "ppo.value_warmup_iterations": 0,
    "evaluate.samples_per_prompt": 1,
    "evaluate.bootstrap_samples": 100,
    "practices.min_rm_accuracy": 0.0,
}


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """Environment variables that name Prefect and MLflow, which keep everything in PostgreSQL and S3; and the store."""
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed: make e2e-infra")
    pytest.importorskip("dvc_s3", reason="dvc-s3 is not installed: make e2e-infra")
    folder = tmp_path_factory.mktemp("services")
    quiet = {**environment(folder), "DO_NOT_TRACK": "true", "PREFECT_HOME": str(folder / "prefect")}
    with postgres("prefect", "mlflow") as database, s3_store(folder, "mlflow", "dvc") as store:
        prefect_settings = {"PREFECT_API_DATABASE_CONNECTION_URL": database.url("asyncpg", "prefect")}
        prefect_command = [f"{BIN}/prefect", "server", "start", "--host", "127.0.0.1"]
        # Other variables than in infra/compose.yaml would make this another set-up.
        mlflow_settings = {"MLFLOW_BACKEND_STORE_URI": database.url("psycopg2", "mlflow"), **store.settings}
        mlflow_settings |= {"MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow:5000,localhost:*,127.0.0.1:*"}
        mlflow_command = [
            f"{BIN}/mlflow",
            "server",
            "--host=127.0.0.1",
            "--workers=1",
            "--artifacts-destination=s3://mlflow",
        ]
        with (
            served(
                prefect_command, folder / "prefect.log", "--port", "/api/health", quiet | prefect_settings
            ) as prefect,
            served(mlflow_command, folder / "mlflow.log", "--port", "/health", quiet | mlflow_settings) as mlflow,
        ):
            addresses = {"PREFECT_API_URL": f"{prefect}/api", "MLFLOW_TRACKING_URI": mlflow, "DO_NOT_TRACK": "true"}
            yield addresses | store.settings, store, database


@pytest.fixture(scope="module")
def checkout(services, tmp_path_factory):
    """A clone of this tree whose remote is the store and whose worker runs one flow run with tiny settings."""
    settings, _, _ = services
    root = tmp_path_factory.mktemp("clone") / "checkout"
    for name in (*COPIED, "dvc.yaml", "params.yaml", "requirements.lock"):
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignored) if source.is_dir() else shutil.copy(source, target)
    run(root, settings, "git", "init", "-q")
    run(root, settings, "dvc", "remote", "add", "--local", "--default", "store", "s3://dvc/rlhf")
    with (root.parent / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            ["/bin/sh", "infra/docker/worker.sh"], cwd=root, env=settings_of(root, settings), stdout=log, stderr=log
        )
    try:
        wait_until(lambda: b"started!" in (root.parent / "worker.log").read_bytes(), START_SECONDS)
        sets = [f"{name}={value}" for name, value in TINY.items()]
        said = run(
            root, settings, "prefect", "deployment", "run", "rlhf-pipeline/rlhf-pipeline", "--watch",
            "--param", f"sets={json.dumps(sets)}",
        )  # fmt: skip
        assert "Completed" in said, (root.parent / "worker.log").read_text()
        yield root
    finally:
        worker.terminate()
        worker.wait(timeout=60)


def settings_of(root: Path, settings: dict[str, str]) -> dict[str, str]:
    ours = {**environment(root), **settings, "PYTHONPATH": str(root), "DVC_SITE_CACHE_DIR": str(root / ".rlhf" / "dvc")}
    return {**ours, "PATH": f"{BIN}:{ours['PATH']}", "PWD": str(root)}


def run(root: Path, settings: dict[str, str], program: str, *arguments: str) -> str:
    """Run a program of the environment in the checkout to its end; what it printed."""
    found = Path(BIN, program)
    done = subprocess.run(
        [found if found.exists() else program, *arguments], cwd=root, env=settings_of(root, settings),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def client(services):
    from mlflow import MlflowClient

    return MlflowClient(services[0]["MLFLOW_TRACKING_URI"])


def test_prefect_and_mlflow_keep_their_records_in_postgresql(services, checkout):
    import psycopg2

    _, _, database = services
    found = {}
    asked = {
        "prefect": "select flow.name from flow_run join flow on flow_run.flow_id = flow.id "
        "where flow_run.state_type = 'COMPLETED' and flow.name = 'rlhf-pipeline'",
        "mlflow": "select name from registered_models",
    }
    for name, query in asked.items():
        with psycopg2.connect(database.url("psycopg2", name).replace("+psycopg2", "")) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            found[name] = [row[0] for row in cursor.fetchall()]
    assert found["prefect"] == ["rlhf-pipeline"]
    assert "rlhf-policy" in found["mlflow"]
    assert not (checkout / ".rlhf" / "mlflow.db").exists()


def test_the_version_loads_from_the_store_and_answers(services, checkout, client, monkeypatch):
    import mlflow

    settings, store, _ = services
    version = client.get_model_version("rlhf-policy", "1")
    assert version.tags["dvc.pushed"] == "true"
    kept = [name for name in store.objects("mlflow") if name.endswith("model.safetensors")]
    assert kept, "the weights are in the bucket"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", settings["MLFLOW_TRACKING_URI"])
    mlflow.set_tracking_uri(settings["MLFLOW_TRACKING_URI"])
    model = mlflow.pyfunc.load_model("models:/rlhf-policy/1")
    answer = model.predict({"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 4})
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_what_the_cache_lost_comes_back_from_the_store(services, checkout):
    settings, store, _ = services
    assert any("files/md5" in name for name in store.objects("dvc"))
    md5 = artifacts.content_md5(checkout / artifacts.POLICY_DIR)
    shutil.rmtree(checkout / ".dvc" / "cache")
    shutil.rmtree(checkout / artifacts.POLICY_DIR)
    run(checkout, settings, "dvc", "pull")
    assert artifacts.content_md5(checkout / artifacts.POLICY_DIR) == md5
    assert "Running stage" not in run(checkout, settings, "dvc", "repro")


def test_the_checkpoints_of_the_version_are_those_of_the_checkout(checkout, client):
    version = client.get_model_version("rlhf-policy", "1")
    assert version.tags[f"dvc.{artifacts.POLICY_DIR}.md5"] == artifacts.content_md5(checkout / artifacts.POLICY_DIR)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, "Unable to locate credentials"),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "Could not connect to the endpoint URL"),
    ],
    ids=["no keys", "no server"],
)
def test_a_store_that_does_not_take_anything_is_one_line_before_the_run(tmp_path, monkeypatch, keys, reason):
    pytest.importorskip("dvc_s3", reason="dvc-s3 is not installed: make e2e-infra")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    for name, value in (settings | keys | {"DVC_SITE_CACHE_DIR": str(tmp_path / "site")}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".dvc").mkdir()
    versioning.prepare(tmp_path)
    with (tmp_path / ".dvc" / "config").open("a") as config:
        config.write("[core]\n    remote = store\n['remote \"store\"']\n    url = s3://dvc/rlhf\n")
    said: list[str] = []
    assert not check_remote(tmp_path, said.append)
    assert len(said) == 1
    assert said[0].startswith(f"DVC remote store (s3://dvc/rlhf): {reason}")


def test_systemd_takes_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    units = sorted((ROOT / "infra" / "systemd").glob("*.service"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *units], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
