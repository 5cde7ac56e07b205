"""Flags: one for each field, in every spelling that is in use, and an answer to those that there are not."""

import re

import pytest

from rlcore.cli.flags import GROUPS, add_flags, params_from, with_flags
from rlcore.cli.main import main
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.parser import Parser
from rlcore.errors import ConfigError


def parsed(*argv: str) -> dict:
    parser = Parser(prog="rlhf llm")
    add_flags(parser)
    return vars(parser.parse_args(argv))


def shown(trainer: str | None = None) -> str:
    parser = Parser(prog="rlhf llm")
    add_flags(parser, trainer)
    return " ".join(parser.format_help().split())


def test_a_flag_that_is_not_given_leaves_the_default_to_the_class():
    assert parsed() == {}
    assert params_from(parsed()) == LLMTrainingParams()


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--rl-gamma", "0.95"], "rl_gamma", 0.95),
        (["--rl-gamma=0.95"], "rl_gamma", 0.95),
        (["--rl_gamma", "0.95"], "rl_gamma", 0.95),
        (["--block_size=64"], "block_size", 64),
        (["--epochs", "3"], "epochs", 3),
        (["--rl-reward-model-path", "./rm"], "rl_reward_model_path", "./rm"),
        (["--reward-model", "./rm"], "rl_reward_model_path", "./rm"),
        (["--peft"], "peft", True),
        (["--peft", "true"], "peft", True),
        (["--peft", "False"], "peft", False),
        (["--peft=true"], "peft", True),
        (["--no-merge-adapter"], "merge_adapter", False),
        (["--merge-adapter", "false"], "merge_adapter", False),
        (["--rl-multi-objective", "true"], "rl_multi_objective", True),
        (["--no-rl-multi-objective"], "rl_multi_objective", False),
        (["--rl-reward-weights", '{"correctness": 1.0}'], "rl_reward_weights", {"correctness": 1.0}),
        (["--rl-env-config", '{"a": [1]}'], "rl_env_config", {"a": [1]}),
        (["--rl-value-clip-range", "none"], "rl_value_clip_range", None),
        (["--project-name", "my_model"], "project_name", "my_model"),
    ],
)
def test_a_flag_sets_its_field(argv, field, value):
    assert getattr(params_from(parsed(*argv)), field) == value


def test_a_switch_does_not_swallow_the_next_flag():
    assert parsed("--peft", "--lora-r", "4") == {"peft": "true", "lora_r": "4"}


@pytest.mark.parametrize("name", LLMTrainingParams.model_fields)
def test_every_switch_has_all_its_forms(name):
    if LLMTrainingParams.model_fields[name].annotation is bool:
        flag = name.replace("_", "-")
        forms = [[f"--{flag}"], [f"--{flag}", "true"], [f"--no-{flag}"], [f"--{flag}", "false"]]
        assert [parsed(*form)[name] for form in forms] == ["true", "true", "false", "false"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rl-gama", "1"], "llm: there is no flag --rl-gama. Did you mean --rl-gamma?"),
        (["--reward-modell", "rm"], "llm: there is no flag --reward-modell. Did you mean --reward-model?"),
        (["--zebra"], "llm: there is no flag --zebra. See rlhf llm --help."),
        (["--rl-gam", "1"], "Did you mean --rl-gamma?"),  # no abbreviations: a later flag would change their meaning
        (["What is it"], "llm: found 'What is it', expected flags. Put a value with blanks into quotes."),
        (["--rl-gamma"], "llm: argument --rl-gamma: expected one argument."),
    ],
)
def test_what_is_no_flag_is_answered_with_the_nearest(argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parsed(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rl-gamma", "7"], "--rl-gamma='7': Input should be less than or equal to 1. Correct the value."),
        (["--epochs", "two"], "--epochs='two': Input should be a valid integer"),
        (["--rl-env-config", "{x"], "--rl-env-config='{x': .*expected a JSON object. Correct the value."),
        (["--peft", "out"], "--peft='out': Input should be a valid boolean"),
        (["--trainer", "chess"], "--trainer='chess': Input should be 'default', "),
        (["--use-vllm"], "--use-vllm='true' is not offered: responses are sampled by this library. Leave it out."),
        (["--no-add-eos-token"], "--add-eos-token='false' is not offered: "),
        (["--quantization", "int4"], "--quantization='int4' is not offered: .* need a GPU and bitsandbytes"),
        (["--no-rl-optimize-device-cache"], "--rl-optimize-device-cache='false' is not offered: .*always halved"),
        (["--log", "wandb"], "--log='wandb' is not offered: metrics stay on this machine. Use mlflow, or none."),
        (["--lr", "0", "--epochs", "-1"], "--lr='0': .* --epochs='-1': "),
    ],
)
def test_an_impossible_value_is_one_line_that_names_the_flag(argv, message):
    with pytest.raises(ConfigError, match=f"^{message}") as raised:
        params_from(parsed(*argv))
    assert "\n" not in str(raised.value)


def test_messages_speak_of_flags():
    assert with_flags("Found rl_env_type without model_ref. Set seed=3, or train the model with peft=True.") == (
        "Found --rl-env-type without --model-ref. Set --seed=3, or train the model with --peft=True."
    )
    # names of files and of what a trainer calls its own are left alone
    assert with_flags("data/train_split.jsonl and my_lora_r") == "data/train_split.jsonl and my_lora_r"


def test_help_says_what_where_from_and_within_which_bounds():
    text = shown()
    assert "Discount per token. Recommended: 0.9 to 0.99. [ppo; ≥ 0 and ≤ 1; default 0.99]" in text
    assert "--rl-reward-model-path TEXT, --reward-model TEXT" in text
    assert "Rank of the adapters. [≥ 1; default 16]" in text
    assert "none is `rejected`. [reward, dpo, orpo; default none]" in text
    assert "--use-vllm" not in text
    assert "--no-peft" not in text
    assert [title for title in GROUPS.values() if f"{title}:" not in text] == []


def test_the_groups_begin_in_the_order_of_the_fields():
    order = [name for name in LLMTrainingParams.model_fields if name in GROUPS]
    assert order == list(GROUPS)
    assert next(iter(LLMTrainingParams.model_fields)) == order[0]


def test_a_preview_shows_what_one_trainer_reads(capsys):
    assert "--rl-gamma" not in shown("dpo")
    assert "--dpo-beta" in shown("dpo")
    assert main(["llm", "--preview-trainer", "orpo"]) == 0
    printed = capsys.readouterr().out
    assert "--dpo-beta" in printed
    assert "--model-ref" not in printed
