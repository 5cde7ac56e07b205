"""Supervised fine-tuning: only response tokens are targets, and a resumed run ends where the uninterrupted one does."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import datasets
import pytest
import torch

from rlcore.configs import ScratchModelConfig, SFTConfig
from rlcore.errors import CheckpointError, DataError
from rlcore.formatting import ChatFormat
from rlcore.models import load_causal_lm, load_tokenizer
from rlcore.scratch import build_model
from rlcore.trl_trainers import sft
from rlcore.trl_trainers.run import IDENTITY
from tests.support.tiny import tiny_tokenizer

SCRATCH = ScratchModelConfig(vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
CONFIG = SFTConfig(
    scratch=SCRATCH, max_steps=6, batch_size=4, learning_rate=1e-2, warmup_steps=2, save_steps=3, logging_steps=1
)
ROWS = [{"prompt": f"What is {a} plus 2?", "response": f"The answer is {a + 2}."} for a in range(8)]
DATA = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))


class Stopped(Exception):
    """Stands for a kill."""


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_causal_lm(folder).state_dict()


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    whole_trace: list[tuple] = []
    resumed_trace: list[tuple] = []

    def train(name: str, on_metrics: Callable) -> None:
        sft.train(CONFIG, DATA, tmp_path / name, resume_dir=tmp_path / f"{name}-steps", on_metrics=on_metrics)

    def stop_after_four(step: int, metrics: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    train("whole", lambda *row: whole_trace.append(row))
    with pytest.raises(Stopped):
        train("resumed", stop_after_four)
    assert not (tmp_path / "resumed").exists()
    train("resumed", lambda *row: resumed_trace.append(row))
    whole, resumed = weights_of(tmp_path / "whole"), weights_of(tmp_path / "resumed")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert [row for row in whole_trace if row[0] > 3] == [row for row in resumed_trace if row[0] > 3]


def test_a_second_run_into_a_folder_trains_again_and_leaves_nothing_beside_the_model(tmp_path: Path):
    steps: list[int] = []
    for _ in range(2):
        sft.train(CONFIG, DATA, tmp_path / "model", on_metrics=lambda step, _: steps.append(step))
    assert steps.count(1) == steps.count(CONFIG.max_steps) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    def train(config: SFTConfig, rows: list[dict[str, str]]) -> None:
        data = datasets.DatasetDict(train=datasets.Dataset.from_list(rows))
        sft.train(config, data, tmp_path / "model", resume_dir=tmp_path / "steps")

    train(CONFIG, ROWS)
    with pytest.raises(CheckpointError, match="config.learning_rate: found 0.01, expected 0.02"):
        train(CONFIG.model_copy(update={"learning_rate": 0.02}), ROWS)
    with pytest.raises(CheckpointError, match="demonstrations.train: found"):
        train(CONFIG, ROWS[::-1])
    # how often is saved and reported changes no number
    train(CONFIG.model_copy(update={"save_steps": 2, "logging_steps": 3}), ROWS)
    (tmp_path / "steps" / IDENTITY).unlink()
    with pytest.raises(CheckpointError, match=r"found checkpoint-\d+ and no identity\.json"):
        train(CONFIG, ROWS)


def test_a_checkpoint_of_another_start_is_refused(tmp_path: Path):
    for seed, outcome in ((0, nullcontext()), (1, pytest.raises(CheckpointError, match="start: found"))):
        build_model(SCRATCH, tiny_tokenizer(), seed).save_pretrained(tmp_path / "start")
        tiny_tokenizer().save_pretrained(tmp_path / "start")
        config = CONFIG.model_copy(update={"model_name": str(tmp_path / "start")})
        with outcome:
            sft.train(config, DATA, tmp_path / "model", resume_dir=tmp_path / "steps")


def test_a_half_written_checkpoint_is_not_resumed_from(tmp_path: Path):
    def kill(step: int, _: object) -> None:
        if step == 1:
            raise Stopped

    with pytest.raises(Stopped):
        sft.train(CONFIG, DATA, tmp_path / "model", resume_dir=tmp_path / "b", on_metrics=kill)
    half = tmp_path / "b" / "checkpoint-3"
    half.mkdir()
    (half / "trainer_state.json").write_text("{")
    steps = []
    sft.train(
        CONFIG, DATA, tmp_path / "model", resume_dir=tmp_path / "b", on_metrics=lambda step, _: steps.append(step)
    )
    assert steps[:3] == [0, 1, 2]


def test_the_loss_counts_the_response_and_nothing_of_the_prompt():
    chat = ChatFormat(tiny_tokenizer())
    (row,) = sft._tokenise(datasets.Dataset.from_list(ROWS[:1]), chat, 64, "train")
    targets = [token for token in row["labels"] if token != -100]
    assert targets == [*chat.encode_response("The answer is 2."), chat.end_id]
    assert row["input_ids"][: len(row["labels"]) - len(targets)] == chat.encode_prompt("What is 0 plus 2?")


def test_no_demonstration_is_an_error_and_writes_nothing(tmp_path: Path):
    empty = datasets.DatasetDict(train=datasets.Dataset.from_dict({"prompt": [], "response": []}))
    with pytest.raises(DataError, match="0 demonstrations"):
        sft.train(CONFIG, empty, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_zero_steps_publish_the_model_as_it_is(tmp_path: Path):
    sft.train(CONFIG, DATA, tmp_path / "start")
    unchanged = SFTConfig(model_name=str(tmp_path / "start"), max_steps=0)
    sft.train(unchanged, DATA, tmp_path / "copy")
    start, copy = weights_of(tmp_path / "start"), weights_of(tmp_path / "copy")
    assert all(torch.equal(start[name], copy[name]) for name in start)
    assert load_tokenizer(tmp_path / "copy").chat_template == load_tokenizer(tmp_path / "start").chat_template
