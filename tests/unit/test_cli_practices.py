"""Good practice in a training from flags: warnings at the start, and a weak reward model is refused."""

import argparse
import shlex
from pathlib import Path

import pytest

from rlcore.cli.flags import add_flags, with_flags
from rlcore.cli.llm import next_command
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.practices import check_practices
from rlcore.configs import recommended_ranges
from rlcore.errors import ConfigError
from rlcore.practices import PRACTICES
from rlcore.results import TrainResult
from rlcore.training_record import record_training
from tests.support.llm import llm

GOOD = {"model": "owner/base-270m", "lr": 1e-5, "valid_split": "valid", "data_path": "rows"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def said(caplog):
    """What is said of some settings: the names of the practices, in their order."""

    def ask(trainer: str, *, is_measured: bool = True, **settings) -> list[str]:
        caplog.clear()
        check_practices(LLMTrainingParams(trainer=trainer, **{**GOOD, **settings}), is_measured=is_measured)
        return [message.partition(":")[0] for message in caplog.messages]

    return ask


def model_folder(name: str, trainer: str, **metrics: float) -> str:
    Path(name).mkdir()
    record_training(TrainResult(Path(name), 1, best_metrics=metrics), trainer, "owner/base")
    return name


@pytest.mark.parametrize("trainer", ["sft", "reward", "ppo", "grpo", "dpo", "orpo"])
def test_good_settings_are_met_with_silence(said, trainer):
    assert said(trainer) == []


@pytest.mark.parametrize(
    ("trainer", "settings", "names"),
    [
        ("ppo", {"lr": 3e-5}, ["ppo_learning_rate"]),
        ("dpo", {"lr": 3e-5}, ["dpo_learning_rate"]),
        ("sft", {"lr": 3e-5}, []),
        ("ppo", {"rl_kl_coef": 0.0}, ["kl_limit", "recommended_ranges"]),
        ("ppo", {"rl_kl_coef": 0.3}, ["small_initial_kl"]),
        ("ppo", {"rl_mini_batch_size": 4}, ["responses_per_step"]),
        ("reward", {"model": "owner/base-7B"}, ["lora_for_large_models"]),
        ("reward", {"model": "owner/base-7B", "peft": True}, []),
        ("dpo", {"valid_split": None}, ["frequent_evaluation"]),
        ("reward", {"valid_split": None}, []),
        ("ppo", {"lr": 3e-5, "rl_kl_coef": 0.3, "silence": "small_initial_kl,ppo_learning_rate"}, []),
    ],
)
def test_what_is_not_good_practice_warns_by_name(said, trainer, settings, names):
    assert said(trainer, **settings) == names


def test_rows_that_are_not_measured_are_no_evaluation(said, caplog):
    assert said("dpo", is_measured=False, eval_strategy="no") == ["frequent_evaluation"]
    assert "Add some: set eval_strategy='epoch'." in caplog.text
    assert said("dpo", valid_split=None) == ["frequent_evaluation"]
    assert "Add some: name them with valid_split." in caplog.text


def test_a_reward_that_compares_is_asked_for_no_validation_rows(said):
    assert said("ppo", is_measured=False, rl_env_type="preference_comparison") == []


def test_validation_rows_that_lie_where_they_are_looked_for_are_found(said):
    Path("rows").mkdir()
    assert said("dpo", valid_split=None) == ["frequent_evaluation"]
    (Path("rows") / "valid.csv").touch()
    assert said("dpo", valid_split=None) == []


def test_the_start_is_judged_by_its_record(said):
    assert said("dpo", model=model_folder("sft", "sft")) == []
    assert said("dpo", model=model_folder("reward", "reward")) == ["sft_before_rl"]


@pytest.mark.parametrize(("name", "recommended"), recommended_ranges(LLMTrainingParams))
def test_a_number_outside_its_range_is_named_as_its_flag(said, caplog, name, recommended):
    for value, is_outside in ((recommended.low, False), (recommended.high, False), (recommended.low / 2, True)):
        names = said("ppo", **{name: value, "silence": "small_initial_kl"})
        assert names == (["recommended_ranges"] if is_outside else [])
    flag = f"--{name.replace('_', '-')}"
    start = f"recommended_ranges: {flag}={recommended.low / 2:g} is outside the recommended range of {recommended}."
    (message,) = caplog.messages
    assert with_flags(message).startswith(start)
    assert with_flags(message).endswith("To go on without this check: --silence=recommended_ranges.")


def test_a_weak_reward_model_is_refused_before_anything_is_read(capsys):
    weak = model_folder("weak", "reward", **{"validation/accuracy": 0.55})
    command = ("--trainer", "ppo", "--model", "owner/base", "--reward-model", weak, "--data-path", "none.jsonl")
    assert llm(*command) == 2
    error = capsys.readouterr().err
    assert "The reward model weak orders 55.0% of its validation pairs rightly, expected at least 60.0%" in error
    assert "--silence=reward_model_accuracy" in error
    assert [path.name for path in Path().iterdir()] == ["weak"]
    # Silenced, it goes on to the rows, which are not there.
    assert llm(*command, "--silence", "reward_model_accuracy") == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_the_next_command_after_a_reward_model_keeps_to_the_recommended_numbers(said, caplog):
    command = next_command(LLMTrainingParams(trainer="reward", model="owner/base", project_name="rm"))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = vars(parser.parse_args(shlex.split(command.removeprefix("rlhf llm --train"))))
    assert given.pop("rl_reward_model_path") == "rm"
    assert said(valid_split="valid", **{**given, "lr": float(given["lr"]), "rl_top_k": int(given["rl_top_k"])}) == []
    assert given["rl_top_k"] == "0"


def test_a_good_reward_model_and_one_that_says_nothing_pass(said):
    good = model_folder("good", "reward", **{"validation/accuracy": 0.6})
    Path("other").mkdir()
    assert said("grpo", rl_reward_model_path=good) == said("grpo", rl_reward_model_path="other") == []


def test_a_name_that_is_none_is_refused_with_the_known_ones(capsys):
    assert llm("--trainer", "sft", "--silence", "slow_and_steady") == 2
    error = capsys.readouterr().err
    assert "--silence='slow_and_steady'" in error
    assert all(name in error for name in PRACTICES)


def test_all_names_can_be_silenced_at_once():
    with pytest.raises(ConfigError):
        check_practices(
            LLMTrainingParams(
                trainer="ppo", rl_reward_model_path=model_folder("rm", "reward", **{"validation/accuracy": 0})
            ),
            is_measured=True,
        )
    silent = LLMTrainingParams(trainer="ppo", rl_reward_model_path="rm", silence=",".join(PRACTICES))
    check_practices(silent, is_measured=False)
