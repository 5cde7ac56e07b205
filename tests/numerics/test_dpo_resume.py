"""Interruptions and caches change nothing in preference training: same weights, same numbers, bit for bit."""

from pathlib import Path

import pytest
import torch

from rlcore.dpo import PreferenceDataset, reference, trainer
from rlcore.errors import CheckpointError
from rlcore.pair_training import PairRun
from rlcore.scratch import build_model
from tests.support.dpo import SHAPE, SWAPPED, config, new_trainer, pairs, same
from tests.support.tiny import tiny_tokenizer


class Stopped(Exception):
    """Stands for a kill."""


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    # 3 epochs of 5 steps, interrupted at step 8: in the second epoch, between two reports and after a best step
    settings = config(num_epochs=3, save_every=2, eval_every=3, logging_steps=4, learning_rate=3e-3)

    def run(folder: Path, stop_at: int) -> tuple[PairRun, dict[str, list[float]], list[tuple]]:
        trace: list[tuple] = []

        def report(step: int, metrics: dict[str, float]) -> None:
            if step == stop_at:
                raise Stopped
            trace.append((step, dict(metrics)))

        started = new_trainer(settings, on_metrics=report).start(pairs(), pairs(6, SWAPPED), resume_dir=folder)
        return started, started.to_the_end(), trace

    whole, whole_history, whole_trace = run(tmp_path / "whole", -1)
    with pytest.raises(Stopped):
        run(tmp_path / "parts", 8)
    resumed, history, trace = run(tmp_path / "parts", -1)
    assert same(whole.client.model.state_dict(), resumed.client.model.state_dict())
    assert history["dpo/loss"] == whole_history["dpo/loss"][6:]
    assert history["validation/loss"] == whole_history["validation/loss"][2:]
    # where it goes on is reported first, then the same numbers
    assert trace == [(6, whole_trace[0][1]), *(entry for entry in whole_trace if entry[0] > 6)]
    # the swapped pairs are the worse the longer it trains, so the first evaluation stays the best
    assert (resumed.best_step, resumed.best_metrics) == (3, whole.best_metrics)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each pass over the reference measured."""
    counts: list[int] = []

    def counted(client, dataset, *arguments):
        counts.append(len(dataset))
        return reference.measure_reference(client, dataset, *arguments)

    monkeypatch.setattr(trainer, "measure_reference", counted)
    return counts


def test_the_reference_is_measured_once_for_all_epochs_and_calls(measured: list[int]):
    several = new_trainer(config(num_epochs=3, eval_every=1))
    several.train(pairs(), pairs(6))
    several.train(pairs(), pairs(6))
    assert measured == [20, 6]


def test_the_reference_on_disk_serves_the_same_model_and_pairs_and_no_others(tmp_path: Path, measured: list[int]):
    def values(data: PreferenceDataset, seed: int = 1) -> torch.Tensor:
        model = build_model(SHAPE, tiny_tokenizer(), seed)
        return new_trainer(config(), model=model).start(data, resume_dir=tmp_path).pairs.ref_sequence_logprobs

    first = values(pairs())
    assert torch.equal(values(pairs()), first)
    assert measured == [20]
    torch.testing.assert_close(values(pairs(20, SWAPPED)), first.flip(0))
    assert not torch.equal(values(pairs(), seed=2), first)
    assert measured == [20, 20, 20]
    # three entries beside each other
    assert torch.equal(values(pairs()), first)
    assert measured == [20, 20, 20]
    for entry in tmp_path.glob("reference-*/logprobs.safetensors"):
        entry.write_bytes(entry.read_bytes()[:-4])
    assert torch.equal(values(pairs()), first)
    assert measured == [20, 20, 20, 20]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    new_trainer(config()).train(pairs(), resume_dir=tmp_path)
    others = [
        (config(beta=0.2), pairs(), {}),
        (config(), pairs(19), {}),
        (config(), pairs(), {"model": build_model(SHAPE, tiny_tokenizer(), seed=2)}),
    ]
    for settings, data, arguments in others:
        with pytest.raises(CheckpointError, match="other settings or data"):
            new_trainer(settings, **arguments).train(data, resume_dir=tmp_path)
    free, other = config(reference_free=True), build_model(SHAPE, tiny_tokenizer(), seed=2)
    new_trainer(free).train(pairs(), resume_dir=tmp_path / "free")
    with pytest.raises(CheckpointError, match="start: found"):
        new_trainer(free, model=other).train(pairs(), resume_dir=tmp_path / "free")
    # how often is saved and reported changes no number
    assert new_trainer(config(save_every=3, logging_steps=2)).train(pairs(), resume_dir=tmp_path)["loss"] == []
