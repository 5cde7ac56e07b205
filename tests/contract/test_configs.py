"""Every example file of settings fits the settings that there are."""

import re
import tomllib
from pathlib import Path

import pytest

from tasks.demos.smollm2 import INSTALL
from tasks.records.artifacts import POLICY_ALGORITHMS
from tasks.records.parameters import resolve

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_goes_over_params_yaml_and_changes_it(example: Path):
    assert resolve(ROOT / "params.yaml", example).changes


@pytest.mark.parametrize(
    ("example", "start"),
    [("qwen3-0.6b", "Qwen/Qwen3-0.6B"), ("llama-8b-lora", "meta-llama/Llama-3.1-8B-Instruct")],
)
def test_a_profile_for_gpus_starts_from_the_hub(example: str, start: str):
    parameters = resolve(ROOT / "params.yaml", ROOT / "configs" / f"{example}.yaml").parameters
    assert parameters.sft.model_name == start
    assert {parameters.reward.model_name, parameters.ppo.model_name} == {"data/models/sft"}


def test_eight_billion_weights_are_trained_through_adapters_alone():
    parameters = resolve(ROOT / "params.yaml", ROOT / "configs" / "llama-8b-lora.yaml").parameters
    assert parameters.reward.use_lora
    trained = (parameters.sft, *(getattr(parameters, name) for name in POLICY_ALGORITHMS))
    assert [stage for stage in trained if stage.lora is None] == []


def test_the_chat_model_is_trained_within_its_budget():
    parameters = resolve(ROOT / "params.yaml", ROOT / "configs" / "smollm2.yaml").parameters
    sft, ppo = parameters.sft, parameters.ppo
    # One pass: what the data set keeps within its budget of tokens is read once.
    assert sft.max_steps * sft.batch_size <= parameters.demo_data.demonstrations
    assert parameters.reward.num_epochs == 1
    assert ppo.num_iterations <= 8
    assert ppo.batch_size <= 32
    assert ppo.max_new_tokens <= 32
    assert sft.model_name == parameters.demo_data.model_name


def test_what_installs_the_chat_model_has_the_versions_of_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {word for word in INSTALL.split() if "==" in word}
    assert wanted <= set(extras["smollm2"])
    assert INSTALL in (ROOT / "configs" / "smollm2.yaml").read_text()


def test_the_readme_names_only_files_that_exist():
    named = re.findall(r"(?:configs|docs|infra)/[\w.-]+\.\w+", (ROOT / "README.md").read_text())
    assert {str(path.relative_to(ROOT)) for path in EXAMPLES} <= set(named)
    missing = [name for name in named if not (ROOT / name).is_file()]
    assert missing == []
