"""The optimiser steps of an iteration: which rows, in which order, when they end, and what is reported."""

import math
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from rlcore.configs import RolloutConfig
from rlcore.errors import TrainingDiverged
from rlcore.forward_backward import StepOutput
from rlcore.functional.kl import k3
from rlcore.health import NonFiniteGuard
from rlcore.rollout import update_measures, update_rollout
from rlcore.rollout.update import UPDATE_KL


@dataclass
class ScriptedClient:
    """Takes steps whose outcome is written down; notes their rows."""

    outcomes: list[dict[str, float]]
    rows: list[list[int]] = field(default_factory=list)
    sizes: set[tuple[int, float]] = field(default_factory=set)

    def train_step(self, rows, loss_of, optimizer, *, micro_batch_size, max_grad_norm):
        # the loss knows the rows of the whole step
        assert loss_of == ("losses of", tuple(rows))
        self.rows.append(list(rows))
        self.sizes.add((micro_batch_size, max_grad_norm))
        told = self.outcomes[len(self.rows) - 1] if len(self.rows) <= len(self.outcomes) else {}
        outcome = {"policy/ratio_mean": 1.0, UPDATE_KL: 0.0, **told}
        loss, skipped = outcome.pop("loss", 0.0), outcome.pop("skipped", False)
        norm = outcome.pop("norm", 1.0)
        return StepOutput(loss, outcome, norm, 0.5, len(self.rows), skipped)


def update(
    client: ScriptedClient,
    row_count: int,
    guard: NonFiniteGuard | None = None,
    *,
    epochs: int = 1,
    iteration: int = 5,
    **settings,
):
    sizes = {"mini_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.7, "seed": 3}
    return update_rollout(
        client,
        None,
        guard or NonFiniteGuard(3),
        row_count,
        lambda rows: ("losses of", tuple(rows)),
        config=RolloutConfig(model_name="none", **sizes, **settings),
        epochs=epochs,
        iteration=iteration,
    )


def test_each_pass_takes_every_row_once_in_an_order_of_its_own():
    client = ScriptedClient([])
    figures = update(client, 10, epochs=3)
    assert [len(rows) for rows in client.rows] == [4, 4, 2] * 3
    passes = [sum(client.rows[start : start + 3], []) for start in (0, 3, 6)]
    assert all(sorted(taken) == list(range(10)) for taken in passes)
    assert passes[0] != passes[1] != passes[2]
    assert client.sizes == {(2, 0.7)}
    assert (figures["optim/step_count"], figures["optim/learning_rate"]) == (9.0, 0.5)
    again, other = ScriptedClient([]), ScriptedClient([])
    update(again, 10, epochs=3)
    update(other, 10, epochs=3, iteration=6)
    assert again.rows == client.rows != other.rows


def test_figures_are_means_over_the_steps_and_the_first_ratio_is_that_of_the_first():
    outcomes = [
        {"policy/ratio_mean": 1.0, "policy/loss": 0.5},
        {"policy/ratio_mean": 1.5, "policy/loss": 0.1, "norm": 3.0},
    ]
    figures = update(ScriptedClient(outcomes), 8)
    assert figures["policy/ratio_mean"] == 1.25
    assert figures["policy/first_ratio_mean"] == 1.0
    assert figures["policy/loss"] == pytest.approx(0.3)
    assert figures["optim/grad_norm"] == 2.0


def test_a_skipped_step_counts_in_no_mean():
    guard = NonFiniteGuard(3)
    nothing = {"policy/loss": math.nan, "loss": math.nan, "norm": math.nan, "skipped": True}
    figures = update(ScriptedClient([{"policy/loss": 0.5}, nothing, {"policy/loss": 0.1}]), 12, guard)
    assert figures["policy/loss"] == pytest.approx(0.3)
    assert (figures["optim/grad_norm"], figures["optim/non_finite_steps"], figures["optim/step_count"]) == (
        1.0,
        1.0,
        3.0,
    )
    # where every step was skipped, what was found is shown
    assert math.isnan(update(ScriptedClient([nothing]), 4, guard)["policy/loss"])
    with pytest.raises(TrainingDiverged, match="loss=nan"):
        update(ScriptedClient([nothing] * 3), 12, guard)


def test_the_step_that_finds_the_policy_too_far_away_is_the_last():
    outcomes = [{UPDATE_KL: 0.01}, {UPDATE_KL: 0.2}, {UPDATE_KL: 0.01}]
    far = partial(update, row_count=12)
    assert far(ScriptedClient(outcomes), max_update_kl=0.1)["optim/step_count"] == 2.0
    assert far(ScriptedClient(outcomes), max_update_kl=0.2)["optim/step_count"] == 3.0
    assert far(ScriptedClient(outcomes))["optim/step_count"] == 3.0


def test_distances_to_the_sampling_policy_are_sums_over_the_count_of_the_step():
    # tokens of ratio 1.5, 0.5 and 1 among 6 of the step; the padding holds NaN. Advantage 1 clips the first at 1.2,
    # advantage -1 the second at 0.8.
    logprobs = torch.tensor([[math.log(1.5), math.log(0.5)], [0.0, math.nan]])
    mask = torch.tensor([[True, True], [True, False]])
    advantages = torch.tensor([[1.0, -1.0], [1.0, math.nan]])
    figures = update_measures(logprobs, torch.zeros(2, 2), advantages, mask, clip_ratio=0.2, token_count=6)
    assert figures["policy/ratio_mean"].item() == pytest.approx(3.0 / 6)
    assert figures["policy/clip_fraction"].item() == pytest.approx(2 / 6)
    assert figures["kl/update_token_mean"].item() == pytest.approx(-(math.log(1.5) + math.log(0.5)) / 6)
    # exp(x) - 1 - x for x = log ratio
    expected = (1.5 - 1 - math.log(1.5)) + (0.5 - 1 - math.log(0.5))
    assert figures[UPDATE_KL].item() == pytest.approx(expected / 6)
    assert k3(torch.zeros(1), torch.tensor([math.log(1.5)])).item() == pytest.approx(0.5 - math.log(1.5))
