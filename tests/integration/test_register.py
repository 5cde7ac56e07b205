import os
from pathlib import Path

import mlflow
import pytest

from rlcore.configs import RegisterConfig
from rlcore.errors import CheckpointError
from tasks.gate import GateReport, Reason
from tasks.records.artifacts import EVALUATE, POLICY_DIR, REWARD_DIR, SFT_DIR, content_md5, write_text
from tasks.registry.store import POLICY_MODEL, REWARD_MODEL, SFT_MODEL
from tests.support.registry import RAW, REFUSED, DyingClient, Killed, Registry
from tests.support.workspace import save_model

MESSAGES = {"messages": [{"role": "user", "content": "Add 1 and 2."}], "max_tokens": 5}


def test_a_policy_that_passed_answers_as_challenger(registry: Registry):
    registered = registry.register()
    assert (str(registered), registered.created, registered.challenger) == ("rlhf-policy version 1", True, True)
    assert registry.at("challenger") == "1"
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
    assert version.description.startswith("Policy trained with DPO on preference pairs. [Curves")
    assert f"/runs/{registry.run_id})" in version.description
    assert "[report on its data](#/experiments/" in version.description
    assert f"/runs/{registry.run_id}/artifacts/data/validation.html)" in version.description
    assert version.tags["gate.passed"] == "true"
    assert version.tags["gate.kl_sequence"] == "kl_sequence: 1.2, bound 2, passed"
    assert version.run_id == registry.run_id
    assert "| gold | 0.300 | 0.800 |" in version.description
    assert "| kl_sequence | 1.200 | 2 | passed |" in version.description
    assert "| 1 \\| 2? | 2 | 3<br> |" in version.description


def test_registering_again_makes_no_second_version(registry: Registry):
    assert registry.register().created
    assert not registry.register().created
    assert not registry.register(key="another flow").created
    assert registry.versions() == ["1"]
    assert registry.tags("1")["pipeline.key"] == "flow"


def test_a_registration_that_is_killed_at_any_write_leaves_one_version_when_it_is_repeated(registry: Registry):
    client, write, killed = registry.client, 0, True
    while killed:
        write += 1
        write_text(registry.root / POLICY_DIR / "weights", f"{write}")
        facts, settings = registry.all_facts(), {"config": RegisterConfig(copy_limit=0), "key": f"flow {write}"}
        registry.client = DyingClient(client, write)
        try:
            registry.register(facts=facts, **settings)
            killed = False
        except Killed:
            assert registry.at("challenger") in (None, f"{write - 1}")
        dying, registry.client = registry.client, client
        assert registry.register(facts=facts, **settings).version == str(write)
        assert len(registry.versions()) == write
        assert [registry.versions(model) for model in (SFT_MODEL, REWARD_MODEL)] == [["1"], ["1"]]
        assert registry.at("challenger") == str(write)
    assert (
        dying.written == 5
    )  # the last one: what a policy is made of is there; model, its files, its end, version, alias


def test_a_new_checkpoint_is_a_new_version_and_a_new_evaluation_is_a_new_verdict(registry: Registry):
    registry.register()
    registry.measure(0.7)
    assert str(registry.register(REFUSED)) == "rlhf-policy version 1"
    assert registry.tags("1")["dvc.data/metrics/evaluate.json.md5"] == content_md5(registry.root / EVALUATE)
    assert registry.tags("1")["gate.passed"] == "false"
    assert "| gold | 0.300 | 0.700 |" in registry.client.get_model_version(POLICY_MODEL, "1").description
    save_model(registry.root / POLICY_DIR, 3)
    assert str(registry.register()) == "rlhf-policy version 2"
    assert registry.at("challenger") == "2"


def test_the_champion_keeps_the_verdict_that_it_was_chosen_by(registry: Registry):
    registry.register()
    registry.click("1")
    registry.measure(0.1)  # against itself it ties
    again = registry.register(REFUSED)
    assert (again.version, again.challenger) == ("1", False)
    assert registry.tags("1")["gate.passed"] == "true"
    assert not registry.register().challenger


def test_models_that_a_policy_is_made_of_are_versions_and_its_parents(registry: Registry):
    for _ in range(2):
        registry.register(facts=registry.all_facts(), flow_run_id="f-1")
    assert [registry.versions(model) for model in (SFT_MODEL, REWARD_MODEL, POLICY_MODEL)] == [["1"]] * 3
    sft, reward, policy = (registry.tags("1", model) for model in (SFT_MODEL, REWARD_MODEL, POLICY_MODEL))
    assert sft[f"dvc.{SFT_DIR}.md5"] == content_md5(registry.root / SFT_DIR)
    assert reward[f"dvc.{REWARD_DIR}.md5"] == content_md5(registry.root / REWARD_DIR)
    assert reward["parent.sft"] == policy["parent.sft"] == "rlhf-sft/1"
    assert policy["parent.reward"] == "rlhf-reward/1"
    assert "parent.champion" not in policy  # there was none
    for tags in (sft, reward, policy):
        assert tags[f"dvc.{RAW}.md5"] == "da7a.dir"
        assert (tags["pipeline.key"], tags["flow_run_id"]) == ("flow", "f-1")


def test_another_policy_of_the_same_parents_makes_no_new_parents(registry: Registry):
    registry.register(facts=registry.all_facts())
    save_model(registry.root / POLICY_DIR, 3)
    registry.register(facts=registry.all_facts())
    assert [registry.versions(model) for model in (SFT_MODEL, REWARD_MODEL)] == [["1"], ["1"]]
    assert registry.versions() == ["1", "2"]
    assert registry.tags("2")["parent.reward"] == "rlhf-reward/1"


def test_training_that_begins_with_the_champion_names_it_as_parent(registry: Registry):
    registry.add("first")
    registry.click("1")
    params = registry.root / "params.yaml"
    params.write_text(params.read_text().replace("model_name: scratch", "model_name: data/models/champion"))
    write_text(registry.root / POLICY_DIR / "weights", "second")
    registry.register(facts=registry.all_facts(), config=RegisterConfig(copy_limit=0))
    assert registry.tags("1", SFT_MODEL)["parent.champion"] == "rlhf-policy/1"
    assert "parent.champion" not in registry.tags("1", REWARD_MODEL)


def test_a_policy_that_reads_no_reward_model_has_none_as_parent(registry: Registry):
    facts = registry.all_facts()
    del facts["policy"].deps[str(REWARD_DIR)]
    registry.register(facts=facts)
    assert "parent.reward" not in registry.tags("1")
    assert registry.versions(REWARD_MODEL) == ["1"]


def test_the_version_names_the_champion_that_it_was_measured_against(registry: Registry):
    registry.add("first")
    registry.click("1")
    registry.add("second")
    assert registry.tags("2")["parent.champion"] == "rlhf-policy/1"
    assert "champion rlhf-policy/1" in registry.client.get_model_version(POLICY_MODEL, "2").description


def test_a_refused_policy_is_kept_with_its_reasons_but_is_no_challenger(registry: Registry):
    registry.register()
    save_model(registry.root / POLICY_DIR, 3)
    registry.measure(0.2)
    assert not registry.register(REFUSED).challenger
    assert registry.versions() == ["1", "2"]
    assert registry.at("challenger") == "1"
    version = registry.client.get_model_version(POLICY_MODEL, "2")
    assert version.tags["gate.passed"] == "false"
    assert version.tags["gate.kl_sequence"] == "kl_sequence: not measured, bound 2, refused"
    assert "| kl_sequence | not measured | 2 | refused |\n\n- kl_sequence: Look at the KL.\n" in version.description


def test_the_first_refused_policy_leaves_no_alias(registry: Registry):
    registry.register(REFUSED)
    assert registry.at("challenger") is None


def test_a_verdict_under_other_conditions_replaces_the_old_one(registry: Registry):
    registry.register(REFUSED)
    registry.register(GateReport(True, (Reason("gold/gain", 0.4, 0.3, True),)))
    tags = registry.client.get_model_version(POLICY_MODEL, "1").tags
    assert tags["gate.passed"] == "true"
    assert tags["gate.gold/gain"] == "gold/gain: 0.4, bound 0.3, passed"
    assert "gate.kl_sequence" not in tags
    assert registry.at("challenger") == "1"


def test_a_checkpoint_that_changed_after_training_is_not_registered(registry: Registry):
    facts = registry.facts()
    path = registry.root / POLICY_DIR / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"dvc.lock says .*\.dir: it was changed after training"):
        registry.register(facts=facts)
    assert registry.versions() == []


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
    assert registry.at("challenger") is None


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
    save_model(registry.root / POLICY_DIR, 3)
    registry.register(config=RegisterConfig(copy_limit=size))
    folder = Path(mlflow.artifacts.download_artifacts("models:/rlhf-policy@challenger"))
    assert (folder / "artifacts" / "policy" / "model.safetensors").is_file()
