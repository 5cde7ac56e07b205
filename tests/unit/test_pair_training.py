"""The run loop over preference pairs: its plan, its checks, what it reports, and calibration worked out by hand."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn

from rlcore.checkpoint import save_checkpoint
from rlcore.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.pair_training import (
    PairPlan,
    PairRun,
    calibration_error,
    calibration_gaps,
    preference_columns,
    preference_splits,
    read_each,
    require_pairs,
    require_prompt,
)
from rlcore.schedule import learning_rate_share


def plan(**changes: Any) -> PairPlan:
    values = {"pair_count": 10, "pairs_per_step": 4, "micro_batch_size": 2, "num_epochs": 2, "seed": 0}
    return PairPlan(**{**values, "learning_rate": 0.1, "logging_steps": 2, **changes})


def test_an_epoch_visits_every_pair_once_in_an_order_of_its_own():
    epoch = plan().epoch(0)
    assert [len(rows) for rows in epoch] == [4, 4, 2]
    assert sorted(sum(epoch, [])) == list(range(10))
    assert plan().epoch(0) == epoch
    others = [sum(other, []) for other in (plan().epoch(1), plan(seed=1).epoch(0), plan(seed=1).epoch(1))]
    assert len({*map(tuple, others), tuple(sum(epoch, [])), tuple(range(10))}) == 5


def test_steps_go_on_anywhere_as_they_would_have():
    steps = list(plan().steps_from(0))
    assert steps == plan().epoch(0) + plan().epoch(1)
    assert plan().total_steps == len(steps) == 6
    for step in range(7):
        assert list(plan().steps_from(step)) == steps[step:]
    # a step larger than the epoch takes all of it; no epoch has no step
    assert [len(rows) for rows in plan(pairs_per_step=99).steps_from(0)] == [10, 10]
    assert list(plan(num_epochs=0).steps_from(0)) == []


def test_the_learning_rate_warms_up_and_falls_along_a_cosine():
    # 2 of 6 steps warm up; then (1 + cos(pi * n / 4)) / 2 for n = 0..3
    shares = [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]
    assert [learning_rate_share(step, 2, 6) for step in range(6)] == pytest.approx(shares, abs=1e-6)
    assert learning_rate_share(6, 2, 6) == 0.0
    assert [learning_rate_share(step, 4, 2) for step in range(2)] == [0.25, 0.5]
    rates = [plan(warmup_steps=2).learning_rate_at(step) for step in range(6)]
    assert rates == pytest.approx([0.1 * share for share in shares], abs=1e-7)
    # down to a fifth: .2 + .8 * share, but not in the warm-up
    rates = [plan(warmup_steps=2, min_learning_rate_ratio=0.2).learning_rate_at(step) for step in range(6)]
    assert rates == pytest.approx([0.05, 0.1, *(0.02 + 0.08 * share for share in shares[2:])], abs=1e-7)


def test_what_is_due_is_due_at_multiples_and_at_the_end():
    assert [step for step in range(1, 7) if plan().is_due(step, 4)] == [4, 6]
    assert not any(plan().is_due(step, None) for step in range(7))


def margin(confidence: float) -> float:
    """sigmoid(margin) = confidence."""
    return math.log(confidence / (1 - confidence))


def test_the_calibration_error_is_the_distance_between_confidence_and_being_right():
    # .88 four times, right three times: |.88 - .75| * 4 = .52. .62 twice, right once: |.62 - .5| * 2 = .24.
    # .76 / 6 pairs = .126667; without bins it would be |4.76 - 4| / 6, the same, as both are too sure
    margins = torch.tensor([margin(0.88)] * 3 + [-margin(0.88)] + [margin(0.62), -margin(0.62)])
    gaps = calibration_gaps(margins)
    # .88 is in bin 7, .85 to .9; .62 in bin 2, .6 to .65
    expected = torch.tensor([0.0, 0.0, 0.24, 0.0, 0.0, 0.0, 0.0, 0.52, 0.0, 0.0])
    torch.testing.assert_close(gaps, expected, rtol=0, atol=1e-6)
    assert calibration_error(gaps.tolist(), 6) == pytest.approx(0.76 / 6, abs=1e-6)
    # one bin too shy and one too sure do not cancel: |.62 - 1| * 2 + |.88 - .5| * 2 = 1.52 of 4 pairs
    margins = torch.tensor([margin(0.62), margin(0.62), margin(0.88), -margin(0.88)])
    assert calibration_error(calibration_gaps(margins).tolist(), 4) == pytest.approx(0.38, abs=1e-6)


def test_gaps_of_parts_add_up_and_the_ends_belong_to_the_outer_bins():
    margins = torch.linspace(-8, 8, 41)
    whole = calibration_gaps(margins)
    torch.testing.assert_close(calibration_gaps(margins[:7]) + calibration_gaps(margins[7:]), whole)
    # a tie is right by half: .5 - .5 = 0. Confidence 1 is in the last bin: right 1 - 1, wrong 1 - 0.
    assert calibration_gaps(torch.tensor([0.0])).tolist() == [0.0] * 10
    assert calibration_gaps(torch.tensor([200.0, -200.0, -200.0])).tolist() == [0.0] * 9 + [2.0]
    # the first numbers of a bin belong to it: .75 to the sixth, its predecessor to the fifth
    edge = torch.tensor([margin(0.75), margin(0.7499)], dtype=torch.float64)
    assert calibration_gaps(edge).nonzero().flatten().tolist() == [4, 5]


def test_a_margin_that_is_not_finite_makes_the_error_not_finite():
    assert math.isnan(calibration_error(calibration_gaps(torch.tensor([math.nan, 1.0])).tolist(), 2))


def test_lists_and_columns_of_the_wrong_form_are_named(caplog: pytest.LogCaptureFixture):
    with pytest.raises(DataError, match="4 prompts, 4 chosen and 1 rejected"):
        require_pairs(["a"] * 4, ["x"] * 4, ["y"])
    with pytest.raises(DataError, match="5 chosen and 3 rejected"):
        require_pairs(["a"] * 5, ["x"] * 5, ["y"] * 3)
    with pytest.raises(DataError, match="0 preference pairs"):
        require_pairs([], [], [])
    with pytest.raises(DataError, match="chosen: found the text 'xyz', expected a list"):
        require_pairs(["a", "b", "c"], "xyz", ["u", "v", "w"])
    with pytest.raises(DataError, match="Found no column rejected, expected prompt, chosen, rejected"):
        preference_columns({"prompt": ["a"], "chosen": ["x"]})
    with caplog.at_level(logging.WARNING):
        columns = {"rejected": ["y"], "system": ["be brief"], "prompt": ["a"], "chosen": ["x"]}
        assert preference_columns(columns) == [["a"], ["x"], ["y"]]
    assert "The columns system are not read" in caplog.text


def test_splits_are_read_where_they_have_rows_and_named_in_errors():
    def split(*prompts: str) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"prompt": list(prompts)})

    data = {"train": split("a", "b"), "validation": split(), "test": split("c")}
    assert preference_splits(data, None) == {"train": {"prompt": ["a", "b"]}}
    both = preference_splits(data | {"validation": split("d")}, None)
    assert read_each(both, lambda columns: columns["prompt"]) == {"train": ["a", "b"], "validation": ["d"]}
    with pytest.raises(ConfigError, match="Found a reward source, expected none"):
        preference_splits(data, reward=len)
    with pytest.raises(DataError, match=r"Found the splits \['test'\], expected train"):
        preference_splits({"test": split("c")}, None)

    blank = preference_splits(data | {"validation": split(" ")}, None)
    with pytest.raises(DataError, match="Split validation: Row 0, prompt: found ' '"):
        read_each(blank, lambda columns: require_prompt(0, columns["prompt"][0]))


@pytest.mark.parametrize(
    "prompt", ["", " \n", None, 5, ["a?"], [{"role": "user"}], [{"role": "user", "content": None}]]
)
def test_a_prompt_that_is_neither_text_nor_messages_is_named(prompt: object):
    with pytest.raises(DataError, match=r"Row 3, prompt: found .*, expected text or chat messages"):
        require_prompt(3, prompt)


class Slope(nn.Module):
    """One weight w, from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


class Slopes:
    """Pairs with the loss slope * w: the gradient of a step is the mean slope of its pairs. Row 7 may be spoilt."""

    def __init__(self, spoilt: frozenset[int] = frozenset()):
        self.spoilt, self.seen = spoilt, []

    def __len__(self) -> int:
        return 10

    def length(self, row: int) -> int:
        return 10 - row

    def loss(
        self, model: nn.Module, rows: Sequence[int], *, pair_count: int, step: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        self.seen.append((step, list(rows)))
        slope = sum(math.nan if row in self.spoilt else row + 1.0 for row in rows)
        loss = slope * model.weight
        return loss / pair_count, {"toy/loss": loss.detach(), "toy/slope_mean": torch.tensor(slope)}

    def sums(self, model: nn.Module, rows: Sequence[int]) -> Mapping[str, Tensor]:
        return self.loss(model, rows, pair_count=1, step=-1)[1]

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        return {name: value / pair_count for name, value in sums.items()}


def started(pairs: Slopes, validation: Slopes | None = None, **changes: Any) -> tuple[PairRun, list[tuple[int, dict]]]:
    reports: list[tuple[int, dict]] = []
    run = PairRun(
        plan(**changes),
        AsyncTrainingClient(Slope()),
        pairs,
        validation,
        figures={"data/pairs": 10.0},
        on_metrics=lambda step, metrics: reports.append((step, dict(metrics))),
    )
    return run, reports


def test_steps_are_cut_into_micro_batches_from_short_to_long():
    pairs = Slopes()
    run, _ = started(pairs)
    run.to_the_end()
    # 6 steps of 4, 4, 2 pairs, two at a time; row 9 is the shortest
    assert [len(rows) for _, rows in pairs.seen] == [2, 2, 2, 2, 2] * 2
    for step, expected in enumerate(plan().steps_from(0)):
        rows = sum((rows for at, rows in pairs.seen if at == step), [])
        assert rows == sorted(expected, reverse=True)


def test_reports_are_means_over_the_pairs_since_the_last_one():
    run, reports = started(Slopes(), Slopes())
    history = run.to_the_end()
    means = [sum(row + 1 for row in rows) / len(rows) for rows in plan().steps_from(0)]
    assert history["toy/slope_mean"] == pytest.approx(means)
    assert reports[:2] == [(0, {"progress/total_steps": 6.0}), (0, {"data/pairs": 10.0})]
    assert [step for step, _ in reports[2:]] == [2, 3, 4, 6]
    # all rows are visited in an epoch: 55 / 10. The pairs of steps 1 and 2 are 8 of them, of step 5 and 6 six.
    assert reports[2][1]["toy/slope_mean"] == pytest.approx((4 * means[0] + 4 * means[1]) / 8)
    assert reports[5][1]["toy/slope_mean"] == pytest.approx((4 * means[4] + 2 * means[5]) / 6)
    # evaluated after each epoch: 5.5 * w
    assert set(reports[3][1]) == {"validation/loss", "validation/slope_mean"}
    assert [metrics["validation/slope_mean"] for step, metrics in reports if step in (3, 6)] == [5.5, 5.5]
    assert history["validation/loss"][-1] == pytest.approx(5.5 * run.client.model.weight.item(), rel=1e-6)
    assert (run.best_step, run.best_metrics) == (6, run.last_metrics)


def test_a_run_without_a_folder_writes_nothing_and_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run, _ = started(Slopes(), Slopes(), save_every=1)
    run.to_the_end()
    weight = run.client.model.weight.item()
    run.load_best()
    assert (run.client.model.weight.item(), run.step) == (weight, 6)
    assert list(tmp_path.iterdir()) == []


def test_a_spoilt_pair_costs_its_step_and_no_other():
    run, reports = started(Slopes(frozenset({7})), logging_steps=1)
    history = run.to_the_end()
    steps = list(plan().steps_from(0))
    spoilt = [7 in rows for rows in steps]
    assert [math.isnan(value) for value in history["toy/loss"]] == spoilt
    logged = {step: metrics for step, metrics in reports if step}
    for step, bad in enumerate(spoilt, start=1):
        assert ("toy/loss" in logged[step], "optim/grad_norm" in logged[step]) == (not bad, not bad)
    assert logged[6]["optim/non_finite_steps"] == sum(spoilt) == 2.0
    assert math.isfinite(run.client.model.weight.item())
    with pytest.raises(TrainingDiverged, match="3 optimiser steps in a row"):
        started(Slopes(frozenset(range(10))))[0].to_the_end()


class Unbounded(Slopes):
    """Validation pairs that a slope is not finite for, though the loss is."""

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        return super().summary(sums, pair_count) | {"toy/slope_mean": math.inf}


def test_a_measure_that_is_not_finite_keeps_no_weights_from_being_saved(tmp_path: Path):
    for _ in range(2):
        run = PairRun(plan(), AsyncTrainingClient(Slope()), Slopes(), Unbounded(), folder=tmp_path)
        run.to_the_end()
    # taken up at its end: what could be kept is there, and the rest is not made up
    assert (run.step, run.best_step) == (6, 6)
    assert set(run.last_metrics) == {"toy/loss", "toy/slope_mean", "validation/loss"} | {
        f"optim/{name}" for name in ("grad_norm", "learning_rate", "non_finite_steps")
    }
    assert run.best_metrics == run.last_metrics


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path):
    save_checkpoint(tmp_path, 3, {"model": {"weight": torch.zeros(())}}, {"kind": "training state"})
    run = PairRun(plan(), AsyncTrainingClient(Slope()), Slopes(), folder=tmp_path, identity={"pairs": "abc"})
    with pytest.raises(CheckpointError, match="step-3: found a run with other settings or data.*pairs: found None"):
        run.to_the_end()
