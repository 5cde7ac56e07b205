"""What a model folder tells about its training and size."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rlcore.practices import is_fine_tuned, parameter_count, recorded_accuracy
from rlcore.results import TrainResult
from rlcore.training_record import record_training


def recorded(folder, trainer, start="hub/name", **metrics):
    folder.mkdir(exist_ok=True)
    record_training(TrainResult(folder, 7, best_metrics=metrics), trainer, str(start))
    return folder


def test_a_record_tells_the_accuracy_of_a_reward_model(tmp_path):
    folder = recorded(tmp_path / "rm", "reward", **{"validation/accuracy": 0.58, "reward_model/loss": float("nan")})
    assert recorded_accuracy(folder) == 0.58
    assert json.loads((folder / "training.json").read_text()) == {
        "trainers": ["reward"],
        "best_step": 7,
        "metrics": {"validation/accuracy": 0.58},
    }
    assert [path.name for path in folder.iterdir()] == ["training.json"]


@pytest.mark.parametrize("text", [None, "{", "[]", '{"metrics": {}}', '{"metrics": {"validation/accuracy": "good"}}'])
def test_without_a_measure_no_accuracy_is_known(tmp_path, text):
    if text is not None:
        (tmp_path / "training.json").write_text(text)
    assert recorded_accuracy(tmp_path) is None


def test_a_model_is_fine_tuned_if_one_of_its_trainers_was_sft(tmp_path):
    sft = recorded(tmp_path / "sft", "sft")
    dpo = recorded(tmp_path / "dpo", "dpo", sft)
    assert is_fine_tuned(dpo)
    assert json.loads((dpo / "training.json").read_text())["trainers"] == ["sft", "dpo"]
    assert not is_fine_tuned(recorded(tmp_path / "ppo", "ppo"))


def test_a_trainer_that_left_the_weights_as_they_were_made_nothing(tmp_path):
    record_training(TrainResult(tmp_path, 0), "sft", "hub/name")
    assert not is_fine_tuned(tmp_path)


@pytest.mark.parametrize("trainers", ["null", '"sft"', "[{}]"])
def test_a_file_of_another_program_tells_nothing_of_trainers(tmp_path, trainers):
    (tmp_path / "training.json").write_text(f'{{"trainers": {trainers}}}')
    assert not is_fine_tuned(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("chat_template.jinja", "{{ messages }}", True),
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}', True),
        ("tokenizer_config.json", "{}", False),
    ],
)
def test_a_chat_template_tells_that_a_model_follows_instructions(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert is_fine_tuned(tmp_path) is expected


def test_of_a_name_on_the_hub_it_is_not_known():
    assert is_fine_tuned("google/gemma-3-270m") is None


def test_the_weights_of_a_folder_are_counted_without_reading_them(tmp_path):
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"c": torch.zeros(())}, tmp_path / "model-00002-of-00002.safetensors")
    assert parameter_count(tmp_path) == 18
    (tmp_path / "model-00002-of-00002.safetensors").write_text("damaged")
    assert parameter_count(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8_000_000_000),
        ("Qwen/Qwen3-0.6B", 600_000_000),
        ("google/gemma-3-270m", 270_000_000),
        ("EleutherAI/pythia-1.4b-deduped", 1_400_000_000),
        ("owner/base", None),
        ("owner/v2-model", None),
        ("owner/3beam", None),
    ],
)
def test_else_the_name_tells_the_size(name, count):
    assert parameter_count(name) == count
