"""One optimiser step over rows: it equals one batch, reports sums, and makes its step or changes nothing."""

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward import AsyncTrainingClient
from tests.support.lane_models import OneNumber, RaggedRows, sgd
from tests.support.tiny import tiny_llama

ROWS = RaggedRows(7)
STEP = [4, 0, 6, 1, 3, 5, 2]


@pytest.fixture
def client() -> Iterator[AsyncTrainingClient]:
    with AsyncTrainingClient(OneNumber()) as client:
        yield client


def slopes(part: list[int], model: OneNumber):
    """A loss whose gradient is the sum of the rows' numbers."""
    return sum(part) * model.weight.sum() + 1.0, {"rows": float(len(part))}


slope_step = {"loss_of": lambda part: partial(slopes, part), "micro_batch_size": 2, "max_grad_norm": None}


@pytest.mark.parametrize("micro_batch_size", [1, 3, 7, 100])
def test_micro_batches_of_any_size_are_one_batch(micro_batch_size):
    expected = tiny_llama().train()
    loss, metrics = ROWS.loss_of(STEP)(STEP)(expected)
    loss.backward()
    norm = nn.utils.get_total_norm([weight.grad for weight in expected.parameters()])
    with AsyncTrainingClient(tiny_llama().train()) as client:
        output = client.train_step(
            STEP, ROWS.loss_of(STEP), sgd(client), micro_batch_size=micro_batch_size, max_grad_norm=None
        )
        for name, weight in client.model.named_parameters():
            before = expected.get_parameter(name)
            torch.testing.assert_close(weight, before - before.grad, atol=1e-6, rtol=0)
    assert output.loss == pytest.approx(loss.item(), abs=1e-6)
    assert output.metrics == {"row_count": 7.0, "correct": float(metrics["correct"])}
    assert output.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    assert (output.step, output.skipped) == (1, False)


def test_losses_and_metrics_are_sums_and_the_rate_is_the_one_used(client):
    # rows 1, 2, 4 in micro-batches of 2: gradient 7, losses 1 + 1 at weight 0
    output = client.train_step([1, 2, 4], optimizer=sgd(client, 0.5), **slope_step)
    assert (output.loss, output.metrics, output.grad_norm, output.learning_rate) == (2.0, {"rows": 3.0}, 7.0, 0.5)
    assert client.model.weight.item() == -3.5
    # clipped from 7 to 1
    output = client.train_step([7], optimizer=sgd(client), **{**slope_step, "max_grad_norm": 1.0})
    assert (output.step, output.grad_norm) == (2, 7.0)
    assert client.model.weight.item() == pytest.approx(-4.5)


def test_rows_are_cut_in_the_order_given(client):
    parts = []

    def loss_of(part):
        parts.append(part)
        return partial(slopes, part)

    client.train_step([5, 1, 4, 2, 3], optimizer=sgd(client), **{**slope_step, "loss_of": loss_of})
    assert parts == [[5, 1], [4, 2], [3]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_number_skips_the_step_and_changes_nothing(client, value):
    def loss_of(part):
        return lambda model: (model.weight.sum() * (value if 3 in part else 1.0), {})

    output = client.train_step([1, 2, 3], optimizer=sgd(client), **{**slope_step, "loss_of": loss_of})
    assert output.skipped
    assert not math.isfinite(output.grad_norm)
    assert (output.step, client.model.weight.item(), client.model.weight.grad) == (0, 0.0, None)
    assert client.train_step([1], optimizer=sgd(client), **slope_step).step == 1


def test_a_failed_loss_raises_its_own_error_and_the_client_goes_on(client):
    def loss_of(part):
        if part == [3]:
            raise KeyError("row 3")
        return partial(slopes, part)

    with pytest.raises(KeyError, match="row 3"):
        client.train_step([1, 2, 3], optimizer=sgd(client), **{**slope_step, "loss_of": loss_of})
    assert (client.model.weight.item(), client.model.weight.grad) == (0.0, None)
    assert client.train_step([1], optimizer=sgd(client), **slope_step).grad_norm == 1.0


def test_it_comes_behind_the_queued_work(client):
    client.backward(lambda model: (model.weight.sum(), {}))
    client.optim_step(sgd(client))
    seen = client.evaluate(lambda model: model.weight.item())
    assert client.train_step([1], optimizer=sgd(client), **slope_step).step == 2
    assert seen.result() == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("rows", "changes", "kind", "message"),
    [
        ([], {}, DataError, "Found no rows"),
        ([1], {"micro_batch_size": 0}, ConfigError, "micro_batch_size=0"),
        ([1], {"max_grad_norm": 0}, ConfigError, "max_grad_norm=0"),
        ([1], {"loss_of": lambda part: lambda model: (model.weight, {})}, DataError, r"a tensor of shape \[1\]"),
    ],
)
def test_a_wrong_call_is_refused(client, rows, changes, kind, message):
    with pytest.raises(kind, match=message):
        client.train_step(rows, optimizer=sgd(client), **{**slope_step, **changes})


def test_micro_batches_that_wait_for_a_step_are_not_mixed_in(client):
    client.backward(lambda model: (model.weight.sum(), {}))
    with pytest.raises(ConfigError, match="wait for their optimiser step"):
        client.train_step([1], optimizer=sgd(client), **slope_step)
    assert client.train_step([1], optimizer=sgd(client), **slope_step).grad_norm == 1.0


def test_parts_are_evaluated_in_order_without_gradient(client):
    def measure(model, part):
        return part, model.training, torch.is_grad_enabled()

    results = client.evaluate_in_parts("abcde", measure, part_size=2)
    assert results == [(["a", "b"], False, False), (["c", "d"], False, False), (["e"], False, False)]
    assert client.evaluate_in_parts("abc", measure) == [(["a", "b", "c"], False, False)]
    assert client.evaluate_in_parts([], measure) == []
    with pytest.raises(ConfigError, match="part_size=0"):
        client.evaluate_in_parts("abc", measure, part_size=0)
    with pytest.raises(ConfigError, match="no reference model"):
        client.evaluate_in_parts("abc", measure, use_reference=True)


def test_parts_may_be_evaluated_by_the_reference():
    reference = OneNumber()
    reference.weight.data.fill_(7.0)
    with AsyncTrainingClient(OneNumber(), reference) as client:
        measured = client.evaluate_in_parts([1], lambda model, part: model.weight.item(), use_reference=True)
    assert measured == [7.0]


def test_work_across_processes_keeps_the_queues_order(client):
    seen = []
    client.evaluate(lambda model: seen.append("before"))
    future = client.across_processes(lambda processes: seen.append("exchange") or processes.gather(3))
    assert future.result() == [3]
    assert seen == ["before", "exchange"]
