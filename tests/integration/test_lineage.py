"""The ancestry of a version, as JSON and in the terminal."""

import io
import json

import pytest
from rich.console import Console

from rlcore.errors import ConfigError
from tasks.records.artifacts import POLICY_DIR, REWARD_DIR, SFT_DIR, content_md5
from tasks.registry.lineage import ancestry, tree
from tasks.registry.store import POLICY_MODEL, SFT_MODEL
from tests.support.registry import RAW, Registry


@pytest.fixture
def registered(registry: Registry) -> Registry:
    """A policy of a reward model of an SFT model, trained with one setting unlike the defaults."""
    params = {"algorithm": "dpo", "seed": "3", "dpo.beta": "0.3", "dpo.num_epochs": "1", "ppo.gamma": "1.0"}
    for name, value in params.items():
        registry.client.log_param(registry.run_id, name, value)
    registry.register(facts=registry.all_facts(), flow_run_id="f-1")
    registry.client.set_model_version_tag(POLICY_MODEL, "1", "git.commit", "c" * 40)
    registry.client.set_model_version_tag(POLICY_MODEL, "1", "git.uncommitted", "tasks/ppo.py")
    return registry


def printed(found: dict) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(tree(found))
    return console.file.getvalue()


def test_the_ancestry_goes_back_to_the_data(registered: Registry):
    found = ancestry(registered.client, "challenger")
    assert json.loads(json.dumps(found)) == found
    assert (found["model"], found["version"], found["aliases"]) == (POLICY_MODEL, "1", ["challenger"])
    assert found["md5"] == content_md5(registered.root / POLICY_DIR)
    assert (found["gate"], found["code"]) == ("passed", {"commit": "c" * 40, "uncommitted": "tasks/ppo.py"})
    assert found["runs"] == {"pipeline": "flow", "flow_run": "f-1", "mlflow": registered.run_id}
    assert found["settings"] == {"algorithm": "dpo", "seed": "3", "beta": "0.3", "num_epochs": "1"}
    reward, sft = found["parents"]["reward"], found["parents"]["sft"]
    assert reward["md5"] == content_md5(registered.root / REWARD_DIR)
    assert reward["parents"]["sft"] == sft
    assert (sft["md5"], sft["data"]) == (content_md5(registered.root / SFT_DIR), {str(RAW): "da7a.dir"})
    assert sft["parents"] == {}


def test_the_terminal_shows_parents_data_code_and_settings_unlike_the_defaults(registered: Registry):
    said = printed(ancestry(registered.client, "1"))
    assert "rlhf-policy version 1 (challenger)" in said
    assert "git commit cccccccccccc, with changes that it does not have: tasks/ppo.py" in said
    assert "flow run f-1" in said
    assert f"checkpoint {content_md5(registered.root / POLICY_DIR)[:12]}" in said
    assert "reward: rlhf-reward version 1" in said
    assert "data/raw/demo da7a.dir" in said
    assert "beta 0.3" in said
    assert "gamma" not in said  # another algorithm's


def test_a_parent_that_was_deleted_is_said_to_be_gone(registered: Registry):
    registered.client.delete_model_version(SFT_MODEL, "1")
    found = ancestry(registered.client, "1")
    assert found["parents"]["sft"] == {"missing": "rlhf-sft/1 is not in the registry any longer"}
    assert "sft: rlhf-sft/1 is not in the registry any longer" in printed(found)


def test_an_unknown_version_is_named(registered: Registry):
    with pytest.raises(ConfigError, match="has no '7'. Name one of 1"):
        ancestry(registered.client, "7")
