import os
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rlcore.configs import RegisterConfig
from rlcore.errors import CheckpointError
from tasks.gate import GateReport, Reason
from tasks.records.artifacts import EVALUATE, POLICY_DIR, SAMPLES, SFT_DIR, content_md5, write_json, write_rows
from tasks.records.tracking import POLICY_MODEL
from tasks.records.versioning import StageFacts
from tasks.register import Registered, register
from tests.support.workspace import make_workspace, save_model

PASSED = GateReport(True, (Reason("gold/gain", 0.4, 0.1, True), Reason("kl_sequence", 1.2, 2.0, True)))
REFUSED = GateReport(False, (Reason("gold/gain", 0.4, 0.1, True), Reason("kl_sequence", None, 2.0, False)))
MESSAGES = {"messages": [{"role": "user", "content": "Add 1 and 2."}], "max_tokens": 5}


class Registry:
    """A checkout after `evaluate`, an empty registry, and the short way to register."""

    def __init__(self, root: Path, client: MlflowClient, experiment_id: str):
        self.root = root
        self.client = client
        self.run_id = client.create_run(experiment_id).info.run_id

    def facts(self) -> dict[str, StageFacts]:
        policy = content_md5(self.root / POLICY_DIR)
        sft = {str(SFT_DIR): content_md5(self.root / SFT_DIR), "tasks/ppo.py": "c0de"}
        measured = {str(EVALUATE): content_md5(self.root / EVALUATE)}
        return {
            "policy": StageFacts("policy", sft, {str(POLICY_DIR): policy}, False),
            "evaluate": StageFacts("evaluate", {str(POLICY_DIR): policy}, measured, False),
        }

    def register(self, gate: GateReport = PASSED, key: str = "flow", **settings) -> Registered:
        given = {"facts": self.facts(), "origin": "DPO on preference pairs"} | settings
        config = given.pop("config", RegisterConfig())
        return register(config, client=self.client, run_id=self.run_id, key=key, gate=gate, root=self.root, **given)

    def measure(self, gold: float) -> None:
        """What `evaluate` leaves."""
        write_json(self.root / EVALUATE, {"gold/sft": 0.3, "gold/policy": gold, "gold/policy_low": gold})

    @property
    def challenger(self) -> str | None:
        try:
            return str(self.client.get_model_version_by_alias(POLICY_MODEL, "challenger").version)
        except MlflowException:
            return None

    @property
    def versions(self) -> list[str]:
        return sorted(str(version.version) for version in self.client.search_model_versions())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    """An MLflow database with its schema; making one takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        client = MlflowClient(uri)
        yield client, client.create_experiment("tests", (folder / "artifacts").as_uri())


@pytest.fixture
def registry(server, tmp_path: Path):
    client, experiment_id = server
    root = make_workspace(tmp_path / "checkout")
    registry = Registry(root, client, experiment_id)
    registry.measure(0.8)
    write_rows(root / SAMPLES["evaluate"], [{"step": 0, "prompt": "1 | 2?", "before": "2", "after": "3\n"}])
    yield registry
    if client.search_registered_models():
        client.delete_registered_model(POLICY_MODEL)


def test_a_policy_that_passed_answers_as_challenger(registry: Registry):
    registered = registry.register()
    assert (str(registered), registered.created, registered.challenger) == ("rlhf-policy version 1", True, True)
    assert registry.challenger == "1"
    model = mlflow.pyfunc.load_model("models:/rlhf-policy@challenger")
    first, same, other = (model.predict({**MESSAGES, "seed": seed}) for seed in (1, 1, 2))
    assert first["object"] == "chat.completion"
    (choice,) = first["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length")
    assert first["usage"]["completion_tokens"] <= 5
    assert first["choices"] == same["choices"]
    assert first["choices"] != other["choices"]
    greedy = [model.predict({**MESSAGES, "temperature": 0.0})["choices"] for _ in range(2)]
    assert greedy[0] == greedy[1]


def test_the_version_says_what_it_was_made_of_and_why_it_passed(registry: Registry):
    registry.register(key="flow-7")
    version = registry.client.get_model_version(POLICY_MODEL, "1")
    facts = registry.facts()
    assert version.tags["pipeline.key"] == "flow-7"
    assert version.tags["dvc.data/models/policy.md5"] == content_md5(registry.root / POLICY_DIR)
    assert version.tags["dvc.data/models/sft.md5"] == facts["policy"].deps[str(SFT_DIR)]
    assert version.tags["dvc.data/metrics/evaluate.json.md5"] == content_md5(registry.root / EVALUATE)
    assert "dvc.tasks/ppo.py.md5" not in version.tags  # code is the commit's business
    assert version.tags["policy"] == "DPO on preference pairs"
    assert version.description.startswith("Policy trained with DPO on preference pairs.\n")
    assert version.tags["gate.passed"] == "true"
    assert version.tags["gate.kl_sequence"] == "kl_sequence: 1.2, bound 2, passed"
    assert version.run_id == registry.run_id
    assert "| gold | 0.300 | 0.800 |" in version.description
    assert "| kl_sequence | 1.200 | 2 | passed |" in version.description
    assert "| 1 \\| 2? | 2 | 3<br> |" in version.description


def test_registering_again_makes_no_second_version(registry: Registry):
    assert registry.register().created
    assert not registry.register().created
    assert not registry.register(key="another flow").created  # same checkpoint, same evaluation
    assert registry.versions == ["1"]


def test_a_new_evaluation_or_a_new_checkpoint_is_a_new_version(registry: Registry):
    registry.register()
    registry.measure(0.7)
    assert str(registry.register()) == "rlhf-policy version 2"
    save_model(registry.root / POLICY_DIR, 3)
    assert str(registry.register()) == "rlhf-policy version 3"
    assert registry.challenger == "3"


def test_a_refused_policy_is_kept_with_its_reasons_but_is_no_challenger(registry: Registry):
    registry.register()
    registry.measure(0.2)
    assert not registry.register(REFUSED).challenger
    assert registry.versions == ["1", "2"]
    assert registry.challenger == "1"
    tags = registry.client.get_model_version(POLICY_MODEL, "2").tags
    assert tags["gate.passed"] == "false"
    assert tags["gate.kl_sequence"] == "kl_sequence: not measured, bound 2, refused"


def test_the_first_refused_policy_leaves_no_alias(registry: Registry):
    registry.register(REFUSED)
    assert registry.challenger is None


def test_a_verdict_under_other_conditions_replaces_the_old_one(registry: Registry):
    registry.register(REFUSED)
    registry.register(GateReport(True, (Reason("gold/gain", 0.4, 0.3, True),)))
    tags = registry.client.get_model_version(POLICY_MODEL, "1").tags
    assert tags["gate.passed"] == "true"
    assert tags["gate.gold/gain"] == "gold/gain: 0.4, bound 0.3, passed"
    assert "gate.kl_sequence" not in tags
    assert registry.challenger == "1"


def test_a_checkpoint_that_changed_after_training_is_not_registered(registry: Registry):
    facts = registry.facts()
    path = registry.root / POLICY_DIR / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"dvc.lock says .*\.dir: it was changed after training"):
        registry.register(facts=facts)
    assert registry.versions == []


def test_a_checkpoint_that_changes_while_it_is_registered_is_no_challenger(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    path = registry.root / POLICY_DIR / "config.json"
    create = registry.client.create_model_version

    def create_and_spoil(*arguments, **settings):
        path.write_text("{}")
        return create(*arguments, **settings)

    monkeypatch.setattr(registry.client, "create_model_version", create_and_spoil)
    with pytest.raises(CheckpointError):
        registry.register()
    assert registry.challenger is None


def test_an_evaluation_of_another_checkpoint_does_not_count(registry: Registry):
    facts = registry.facts()
    facts["evaluate"].deps[str(POLICY_DIR)] = "0" * 32 + ".dir"
    with pytest.raises(CheckpointError, match="`evaluate` measured 0000"):
        registry.register(facts=facts)


def test_a_checkpoint_above_the_limit_is_a_pointer_without_weights(registry: Registry):
    size = sum(path.stat().st_size for path in (registry.root / POLICY_DIR).iterdir())
    registry.register(config=RegisterConfig(copy_limit=size - 1))
    version = registry.client.get_model_version_by_alias(POLICY_MODEL, "challenger")
    folder = Path(mlflow.artifacts.download_artifacts("models:/rlhf-policy@challenger"))
    assert [name for _, _, names in os.walk(folder) for name in names if name.endswith(".safetensors")] == []
    assert version.tags["dvc.data/models/policy.md5"] == content_md5(registry.root / POLICY_DIR)
    registry.measure(0.9)
    registry.register(config=RegisterConfig(copy_limit=size))
    folder = Path(mlflow.artifacts.download_artifacts("models:/rlhf-policy@challenger"))
    assert (folder / "artifacts" / "policy" / "model.safetensors").is_file()
