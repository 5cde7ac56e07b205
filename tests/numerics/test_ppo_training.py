"""PPO as a whole: it learns, the first ratio is 1, warm-up moves nothing, accumulation and resume change nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import datasets
import pytest
import torch

from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from rlcore.models import save_causal_lm
from rlcore.ppo import PPOTrainer, train
from rlcore.ppo import trainer as ppo_trainer
from rlcore.results import TrainResult
from rlcore.scratch import build_model, train_tokenizer
from tests.support.ppo import PROMPTS, SHAPE, share_of_e, tiny_config, tiny_trainer
from tests.support.tiny import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]


def policy_weights(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.base_model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_score_rises_and_does_not_with_learning_rate_near_zero(seed: int):
    def gain(learning_rate: float) -> tuple[float, float]:
        trainer = tiny_trainer(tiny_config(seed=seed, learning_rate=learning_rate, num_iterations=16, batch_size=32))
        scores = torch.tensor(trainer.train(PROMPTS)["rewards"])
        trainer.close()
        first, last = scores[:5], scores[-5:]
        standard_error = ((first.var() + last.var()) / 5).sqrt()
        return (last.mean() - first.mean()).item(), 3 * standard_error.item()

    learned, bound = gain(5e-3)
    assert learned > bound
    idle, bound = gain(1e-12)
    assert idle < bound


def test_the_first_ratio_is_one_and_warm_up_leaves_the_policy_alone():
    seen = []
    config = tiny_config(num_iterations=3, value_warmup_iterations=2)
    trainer = tiny_trainer(config, on_metrics=lambda step, metrics: seen.append((step, dict(metrics))))
    before = policy_weights(trainer)
    value_before = trainer.model.value_head.output.weight.clone()
    trainer.train(PROMPTS, 2)
    assert same(before, policy_weights(trainer))
    assert not torch.equal(value_before, trainer.model.value_head.output.weight)
    trainer.train(PROMPTS, 3)
    trainer.close()
    iterations = {step: metrics for step, metrics in seen if "kl/ref_sequence_mean" in metrics}
    # Two forward passes of different shape agree to rounding; a trunk that had moved would show thousandths.
    assert iterations[3]["kl/ref_sequence_mean"] == pytest.approx(0.0, abs=1e-5)
    assert iterations[3]["policy/first_ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert not same(before, policy_weights(trainer))


def test_micro_batches_make_the_step_of_one_batch():
    whole = tiny_trainer(tiny_config(num_iterations=1, ppo_epochs=1, mini_batch_size=16))
    parts = tiny_trainer(tiny_config(num_iterations=1, ppo_epochs=1, mini_batch_size=4, gradient_accumulation_steps=4))
    losses = []
    for trainer in (whole, parts):
        losses.append(trainer.train(PROMPTS)["policy_loss"])
        trainer.close()
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    first, second = policy_weights(whole), policy_weights(parts)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=2e-6)


def test_every_mini_batch_steps():
    # 16 responses in mini-batches of 4, 2 to a step: 2 steps an epoch, 3 epochs
    counts = []
    config = tiny_config(num_iterations=1, mini_batch_size=4, gradient_accumulation_steps=2, ppo_epochs=3)
    trainer = tiny_trainer(config, on_metrics=lambda step, metrics: counts.append(metrics.get("optim/step_count")))
    trainer.train(PROMPTS)
    trainer.close()
    assert counts[-1] == 6


def test_a_large_step_ends_the_update_early():
    counts = []
    config = tiny_config(num_iterations=1, learning_rate=0.1, ppo_epochs=8, max_update_kl=0.05)
    trainer = tiny_trainer(config, on_metrics=lambda step, metrics: counts.append(metrics.get("optim/step_count")))
    trainer.train(PROMPTS)
    trainer.close()
    assert counts[-1] < 16


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    def run(iterations: int, folder: Path) -> tuple[dict, dict[str, torch.Tensor], float]:
        trainer = tiny_trainer(tiny_config())
        history = trainer.train(PROMPTS, iterations, validation_prompts=PROMPTS[:4], resume_dir=folder)
        trainer.close()
        return history, policy_weights(trainer), trainer.kl_controller.value

    whole_history, whole, whole_coef = run(4, tmp_path / "whole")
    run(2, tmp_path / "parts")
    history, resumed, coef = run(4, tmp_path / "parts")
    assert same(whole, resumed)
    assert coef == whole_coef
    assert history == {name: values[2:] for name, values in whole_history.items()}


@pytest.mark.parametrize(
    ("changes", "prompts", "validation", "named"),
    [
        ({"learning_rate": 1e-3}, PROMPTS, PROMPTS[:4], "config.learning_rate: found 0.003, expected 0.001"),
        ({"seed": 1}, PROMPTS, PROMPTS[:4], "config.seed: found 0, expected 1"),
        ({}, PROMPTS[:-1], PROMPTS[:4], "prompts: found"),
        ({}, [{"prompt": prompt, "row": 1} for prompt in PROMPTS], PROMPTS[:4], "prompts: found"),
        ({}, PROMPTS, PROMPTS[:3], "validation: found"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changes, prompts, validation, named):
    trainer = tiny_trainer(tiny_config(num_iterations=1))
    trainer.train(PROMPTS, validation_prompts=PROMPTS[:4], resume_dir=tmp_path)
    trainer.close()
    before = (tmp_path / "best" / "model.safetensors").read_bytes()
    other = tiny_trainer(tiny_config(**{"num_iterations": 1, **changes}))
    with pytest.raises(CheckpointError, match=named):
        other.train(prompts, validation_prompts=validation, resume_dir=tmp_path)
    other.close()
    assert (tmp_path / "best" / "model.safetensors").read_bytes() == before


def test_a_checkpoint_of_another_reference_is_refused(tmp_path: Path):
    for seed, outcome in ((1, nullcontext()), (2, pytest.raises(CheckpointError, match="frozen: found"))):
        reference = build_model(SHAPE, tiny_tokenizer(), seed=seed)
        trainer = tiny_trainer(tiny_config(num_iterations=1), reference_model=reference)
        with outcome:
            trainer.train(PROMPTS, resume_dir=tmp_path)
        trainer.close()


def test_more_iterations_and_other_saving_go_on_from_the_checkpoint(tmp_path: Path):
    first = tiny_trainer(tiny_config(num_iterations=1))
    first.train(PROMPTS, resume_dir=tmp_path)
    first.close()
    longer = tiny_trainer(tiny_config(num_iterations=3, save_every=2))
    assert len(longer.train(PROMPTS, resume_dir=tmp_path)["rewards"]) == 2
    longer.close()


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Folder of the tiny policy."""
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    save_causal_lm(model, tiny_tokenizer(), tmp_path / "start")
    return tmp_path / "start"


def run_into(folder: Path, start: Path, **arguments) -> tuple[TrainResult, list[int]]:
    """The common interface over the tiny policy; the result, and the iterations that trained."""
    steps: list[int] = []
    rows = datasets.Dataset.from_dict({"prompt": PROMPTS})
    data = datasets.DatasetDict(train=rows, validation=rows.select(range(4)))

    def report(step: int, metrics: dict[str, float]) -> None:
        if "policy/loss" in metrics:
            steps.append(step)

    config = tiny_config(model_name=str(start), num_iterations=2)
    return train(config, data, folder, reward=share_of_e, on_metrics=report, **arguments), steps


def test_a_second_run_into_a_folder_trains_again_and_leaves_nothing_beside_the_model(tmp_path: Path, start: Path):
    first, first_steps = run_into(tmp_path / "policy", start)
    weights = (tmp_path / "policy" / "model.safetensors").read_bytes()
    second, second_steps = run_into(tmp_path / "policy", start)
    assert first_steps == second_steps == [1, 2]
    assert (tmp_path / "policy" / "model.safetensors").read_bytes() == weights
    assert (first.best_step, first.best_metrics) == (second.best_step, second.best_metrics)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "start"]


def test_the_best_metrics_are_metrics_and_the_step_is_apart(tmp_path: Path, start: Path):
    result, _ = run_into(tmp_path / "policy", start)
    assert result.best_step in {0, 2}
    assert all(name.startswith("validation/") for name in result.best_metrics)


def test_a_subfolder_of_the_best_model_is_published_too(tmp_path: Path, start: Path, monkeypatch):
    def save_with_subfolder(model, tokenizer, folder):
        save_causal_lm(model, tokenizer, folder)
        (folder / "extra").mkdir()
        (folder / "extra" / "note.txt").write_text("kept")

    monkeypatch.setattr(ppo_trainer, "save_causal_lm", save_with_subfolder)
    run_into(tmp_path / "policy", start)
    assert (tmp_path / "policy" / "extra" / "note.txt").read_text() == "kept"


def test_a_folder_may_be_the_reference(tmp_path: Path, start: Path):
    own, _ = run_into(tmp_path / "own", start)
    named, _ = run_into(tmp_path / "named", start, reference=start)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("own", "named")]
    assert weights[0] == weights[1]
    assert own.best_metrics == named.best_metrics


def test_a_reference_with_another_vocabulary_is_refused():
    shape = SHAPE.model_copy(update={"vocab_size": 290})
    texts = [f"{prompt} Sure." for prompt in PROMPTS]
    other = build_model(shape, train_tokenizer(texts, 290), seed=1)
    sizes = len(tiny_tokenizer()), other.get_input_embeddings().num_embeddings
    assert sizes[0] != sizes[1]
    with pytest.raises(ConfigError, match=f"Found {sizes[0]} tokens in the policy's vocabulary and {sizes[1]}"):
        tiny_trainer(tiny_config(), reference_model=other)


def test_a_trainer_leaves_the_random_stream_of_its_caller_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    trainer = tiny_trainer(tiny_config(num_iterations=1))
    trainer.train(PROMPTS)
    trainer.close()
    assert torch.equal(torch.rand(2), expected)


def test_responses_are_sampled_by_seed():
    trainer = tiny_trainer(tiny_config())
    first, again, other = (trainer.generate_responses(PROMPTS, seed=seed) for seed in (0, 0, 1))
    trainer.close()
    assert len(first) == len(PROMPTS)
    assert first == again
    assert first != other


def test_several_launched_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="The PPO trainer: found WORLD_SIZE=2, expected one process"):
        tiny_trainer(tiny_config())


CHILD = """
    import os, signal, sys
    from pathlib import Path
    from tests.support.ppo import PROMPTS, tiny_config, tiny_trainer

    folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])

    def report(step, metrics):
        if step == kill_at and "policy/loss" in metrics:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = tiny_trainer(tiny_config(save_every=2), on_metrics=report)
    trainer.train(PROMPTS, resume_dir=folder)
    trainer.save_model(folder / "final")
    trainer.close()
"""


@pytest.mark.slow
def test_a_killed_process_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path):
    def run(folder: Path, kill_at: int) -> int:
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), str(kill_at)]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode

    assert run(tmp_path / "whole", 99) == 0
    assert run(tmp_path / "killed", 3) == -signal.SIGKILL
    assert run(tmp_path / "killed", 99) == 0
    weights = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


def test_a_reward_source_that_is_wrong_says_so_and_names_itself():
    def too_few(prompts, responses, metadata=None):
        return [0.0]

    def not_a_number(prompts, responses, metadata=None):
        return [float("nan")] * len(responses)

    for source, message in (
        (too_few, "too_few returned 1 scores for 16"),
        (not_a_number, "not_a_number, response 0, returned nan"),
    ):
        trainer = tiny_trainer(tiny_config(), reward_fn=source)
        with pytest.raises(DataError, match=message):
            trainer.train(PROMPTS)
        trainer.close()


def test_the_prompts_other_columns_reach_the_reward_source():
    seen = []

    def remember(prompts, responses, metadata=None):
        seen.extend(metadata)
        return share_of_e(prompts, responses)

    trainer = tiny_trainer(tiny_config(num_iterations=1, batch_size=8), reward_fn=remember)
    trainer.train([{"prompt": prompt, "row": row} for row, prompt in enumerate(PROMPTS)])
    trainer.close()
    assert len({columns["row"] for columns in seen}) == 8


def test_bad_settings_are_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="no reward source"):
        PPOTrainer(tiny_config())
    with pytest.raises(ValueError, match="larger than batch_size"):
        tiny_config(mini_batch_size=32)
    trainer = tiny_trainer(tiny_config())
    with pytest.raises(DataError, match="0 prompts"):
        trainer.train([])
    with pytest.raises(DataError, match="Found one text"):
        trainer.train("What is 1 plus 1?")
    with pytest.raises(DataError, match="Prompt 1: found None"):
        trainer.train(["fine", None])
    with pytest.raises(DataError, match="Prompt 1"):
        trainer.train(["fine", "  "])
    trainer.close()


def test_zero_iterations_train_nothing():
    trainer = tiny_trainer(tiny_config())
    before = policy_weights(trainer)
    assert trainer.train(PROMPTS, 0)["rewards"] == []
    assert same(before, policy_weights(trainer))
    trainer.close()


def test_weights_that_are_not_finite_stop_training_and_keep_the_checkpoint(tmp_path: Path):
    def spoil(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            trainer.model.value_head.output.bias.data.fill_(float("nan"))

    trainer = tiny_trainer(tiny_config(num_iterations=9, save_every=2, max_non_finite_steps=2), on_metrics=spoil)
    with pytest.raises(TrainingDiverged, match="2 optimiser steps in a row"):
        trainer.train(PROMPTS, resume_dir=tmp_path)
    trainer.close()
    assert (tmp_path / "step-2" / "manifest.json").exists()
