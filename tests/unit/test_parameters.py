"""params.yaml: one clear line for each fault, a fixed order of precedence, and bytes that stay."""

import shutil
from pathlib import Path

import pytest

from rlcore.errors import ConfigError
from tasks.records.artifacts import REWARD_DIR, VALIDATED
from tasks.records.parameters import Change, load_parameters, resolve, stage_config, write_parameters
from tests.support.checkout import ROOT


@pytest.fixture
def params(tmp_path):
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_sections_inherit_the_seed_unless_they_have_their_own(params):
    edit(params, "seed: 0", "seed: 7")
    edit(params, "sft:\n", "sft:\n  seed: 3\n")
    parameters = load_parameters(params)
    assert (parameters.seed, parameters.ppo.seed, parameters.sft.seed) == (7, 7, 3)
    assert stage_config("sft", params).seed == 3


def test_the_policy_runs_with_the_section_of_its_algorithm(params):
    parameters = load_parameters(params)
    assert parameters.of_stage("policy") is parameters.ppo
    assert parameters.of_stage("sft") is parameters.sft
    for algorithm in ("grpo", "dpo", "orpo"):
        chosen = resolve(params, None, [f"algorithm={algorithm}"]).parameters
        assert chosen.of_stage("policy") is getattr(chosen, algorithm)


def test_what_a_policy_learns_from_is_said_and_what_it_does_not_read_is_known(params):
    reward_model, prompts, preferences = REWARD_DIR, VALIDATED / "prompts", VALIDATED / "preferences"
    for sets, origin, unread in (
        ([], "PPO on the scores of the reward model", {preferences}),
        (["algorithm=dpo"], "DPO on preference pairs", {prompts, reward_model}),
        (["algorithm=orpo"], "ORPO on preference pairs", {prompts, reward_model}),
        (["algorithm=grpo", "reward_function=m:f"], "GRPO on the scores of m:f", {preferences, reward_model}),
    ):
        parameters = resolve(params, None, sets).parameters
        assert parameters.policy_origin() == origin
        assert set(parameters.unread_by_policy()) == unread


def test_a_reward_function_is_for_algorithms_that_sample(params):
    for sets, said in (
        (
            ["algorithm=dpo", "reward_function=m:f"],
            "reward_function: found 'm:f' with algorithm dpo, which learns from",
        ),
        (["reward_function=3"], "reward_function: found 3, expected null or module:function"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve(params, None, sets)
    edit(params, "reward_function: null", "# reward_function: null")
    with pytest.raises(ConfigError, match="reward_function: missing. Add `reward_function: null`"):
        load_parameters(params)


def test_a_set_goes_over_a_file_which_goes_over_the_base(params, tmp_path):
    overrides = tmp_path / "small.yaml"
    overrides.write_text("sft: {max_steps: 5, batch_size: 4}\nevaluate: {gold: null}\n")
    parameters = resolve(params, overrides, ["sft.max_steps=6", "ppo.lora.rank=2"]).parameters
    assert (parameters.sft.max_steps, parameters.sft.batch_size, parameters.sft.warmup_steps) == (6, 4, 20)
    assert parameters.evaluate.gold is None
    assert parameters.ppo.lora.rank == 2


def test_unchanged_settings_leave_the_bytes(params):
    edit(params, "  max_steps: 1000", "  max_steps:    1000   # as written by hand")
    before = params.read_bytes()
    resolution = resolve(params, None, ["sft.learning_rate=3e-3", "seed=0"])
    assert resolution.changes == ()
    write_parameters(params, resolution.changes)
    assert params.read_bytes() == before


def test_a_changed_setting_keeps_comments_and_all_other_lines(params):
    before = params.read_text().splitlines()
    resolution = resolve(params, None, ["ppo.kl_target=2.5", "ppo.kl_target_unit=token", "gate.min_length_ratio=null"])
    write_parameters(params, resolution.changes)
    after = params.read_text().splitlines()
    assert load_parameters(params) == resolution.parameters
    changed = [(old.strip(), new.strip()) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("  ")[0] for _, new in changed] == [
        "kl_target: 2.5",
        "kl_target_unit: token",
        "min_length_ratio: null",
    ]
    assert "# nats per response" in changed[1][1]


def test_a_change_says_what_it_was(params):
    (change,) = resolve(params, None, ["sft.max_steps=5"]).changes
    assert str(change) == "sft.max_steps: 1000 -> 5"


def test_a_new_nested_setting_is_written(params):
    write_parameters(params, resolve(params, None, ["ppo.lora.rank=2"]).changes)
    assert load_parameters(params).ppo.lora.rank == 2


def test_a_removed_key_of_a_nested_mapping_goes(params, tmp_path):
    # min_gain is one setting: a file that names it replaces all of it.
    overrides = tmp_path / "gate.yaml"
    overrides.write_text("gate: {min_gain: {gold: 0.2}}\n")
    resolution = resolve(params, overrides)
    assert resolution.changes == (Change(("gate", "min_gain"), {"gold": 0.10, "number_right": 0.15}, {"gold": 0.2}),)
    write_parameters(params, resolution.changes)
    assert load_parameters(params).gate.min_gain == {"gold": 0.2}


def test_every_fault_has_its_line(params):
    edit(params, "algorithm: ppo", "algorithm: pp0")
    edit(params, "seed: 0", "seed: -1")
    edit(params, "  max_steps: 1000", "  max_step: 1000")
    edit(params, "  lam: 0.95", "  lam: 1.95")
    edit(params, "register:\n", "regster:\n")
    with pytest.raises(ConfigError) as caught:
        load_parameters(params)
    faults = str(caught.value).splitlines()
    assert [fault.split(":")[0] for fault in faults] == [
        "regster", "algorithm", "seed", "sft.max_step", "ppo.lam", "Section 'register'",
    ]  # fmt: skip
    assert "expected one of ppo" in faults[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [1, 2", r"not YAML at line 1"),
        ("seed: 2020-13-45", r"not YAML: month must be in 1..12"),
        ("a: 1\nsft:\n  x: 1\n  x: 2\n", r"not YAML at line 4, column 3: found duplicate key \"x\""),
        ("- 1\n- 2\n", "found list, expected a mapping"),
        ("", "found NoneType, expected a mapping"),
    ],
)
def test_broken_yaml_names_its_line(tmp_path, text, message):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_parameters(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.yaml: No such file"):
        load_parameters(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("sft.max_steps", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("sft..x=3", "expected section.key=value"),
        ("sftt.max_steps=3", "sftt is no section"),
        ("seed.x=3", "seed is no section"),
        ("sft.a=[1", "is not YAML"),
        ("seed=2020-13-45", "is not YAML"),
        ("seed=4294967296", "expected a whole number from 0 to 4294967295"),
        ("sft.learning_rate=.inf", "learning_rate"),
    ],
)
def test_a_set_that_is_none_is_refused(params, assignment, message):
    with pytest.raises(ConfigError, match=message):
        resolve(params, None, [assignment])


def test_one_section_is_read_although_another_is_broken(params):
    edit(params, "  max_steps: 1000", "  max_step: 1000")
    assert stage_config("ppo", params).lam == 0.95
    with pytest.raises(ConfigError, match=r"sft\.max_step: unknown key"):
        stage_config("sft", params)
