"""The lane: order, failures, skipped steps, modes, and what it says when it is used wrongly."""

import concurrent.futures
import gc
import logging
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from tests.support.lane_models import OneNumber, UniformModel, sgd


@pytest.fixture
def client() -> Iterator[AsyncTrainingClient]:
    with AsyncTrainingClient(OneNumber()) as client:
        yield client


def slope(value: float) -> Callable[[OneNumber], tuple[Tensor, dict[str, float]]]:
    """A loss whose gradient is `value`."""
    return lambda model: (value * model.weight.sum(), {"slope": value})


def broken(model: nn.Module) -> tuple[Tensor, dict[str, float]]:
    raise DataError("row 7 has no tokens")


# Order and futures.


def test_queued_order_is_executed_order(client):
    seen: list[int] = []
    for number in range(50):
        client.evaluate(lambda model, number=number: seen.append(number))
    client.shutdown()
    assert seen == list(range(50))


def test_an_evaluation_sees_the_steps_queued_before_it_and_no_later_one(client):
    weights = []
    for _ in range(3):
        weights.append(client.evaluate(lambda model: model.weight.item()))
        client.backward(slope(0.5))
        client.optim_step(sgd(client))
    assert [weight.result() for weight in weights] == [0.0, -0.5, -1.0]


def test_execution_time_is_that_of_the_work_and_not_of_the_wait(client):
    def slow(model: OneNumber) -> tuple[Tensor, dict[str, float]]:
        time.sleep(0.02)
        return model.weight.sum(), {}

    start = time.perf_counter()
    future = client.backward(slow)
    client.evaluate(lambda model: time.sleep(0.2)).result()
    elapsed = time.perf_counter() - start
    assert 0.02 <= future.result().metrics["execution_time"] <= elapsed - 0.2


def test_a_timeout_leaves_the_work_alone(client):
    gate = threading.Event()
    future = client.evaluate(lambda model: gate.wait())
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert not future.done()
    gate.set()
    assert future.result() is True
    assert future.done()


@pytest.fixture
def ctrl_c():
    """Python's own handler: a process in the background of a shell starts with the signal ignored."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_wait_and_the_client_goes_on(client):
    gate = threading.Event()
    future = client.evaluate(lambda model: gate.wait())
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        future.result()
    gate.set()
    assert future.result() is True


def test_waiting_for_the_own_lane_inside_its_work_is_an_error(client):
    inner = client.evaluate(lambda model: client.evaluate(lambda model: 1).result())
    with pytest.raises(RLCoreError, match="would never end"):
        inner.result(timeout=10)


def test_work_has_the_callers_number_of_threads(client):
    before = torch.get_num_threads()
    try:
        for number in (before + 1, before):
            torch.set_num_threads(number)
            assert client.evaluate(lambda model: torch.get_num_threads()).result() == number
    finally:
        torch.set_num_threads(before)


def test_gradients_are_on_in_the_work_whatever_the_caller_does(client):
    with torch.no_grad():
        output = client.backward(slope(2.0)).result()
    assert output.metrics["slope"] == 2.0
    assert client.model.weight.grad.item() == 2.0


# Steps.


def test_grad_norm_is_measured_before_clipping_and_the_rate_is_the_one_used():
    # gradient (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8)
    with AsyncTrainingClient(OneNumber(2)) as client:
        optimizer = sgd(client, 0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
        client.backward(lambda model: (model.weight @ torch.tensor([3.0, 4.0]), {}))
        output = client.optim_step(optimizer, scheduler, max_grad_norm=1.0).result()
        assert (output.step, output.learning_rate, output.grad_norm) == (1, 0.5, 5.0)
        torch.testing.assert_close(client.model.weight.data, -0.5 * torch.tensor([0.6, 0.8]))
        assert scheduler.get_last_lr() == [pytest.approx(0.05)]
        assert client.model.weight.grad is None


def test_a_step_without_micro_batches_is_skipped(client):
    output = client.optim_step(sgd(client)).result()
    assert (output.step, output.metrics["skipped"]) == (0, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_number_costs_the_whole_window_and_nothing_else(client, value):
    optimizer = sgd(client)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
    for gradient in (1.0, value, 1.0):
        client.backward(slope(gradient))
    output = client.optim_step(optimizer, scheduler).result()
    assert output.step == 0
    assert (output.metrics["skipped"], output.metrics["non_finite"]) == (1.0, 1.0)
    assert (client.model.weight.item(), client.model.weight.grad) == (0.0, None)
    assert scheduler.get_last_lr() == [1.0]
    client.backward(slope(0.5))
    assert client.optim_step(optimizer, max_grad_norm=None).result().step == 1
    assert client.model.weight.item() == -0.5


def test_a_non_finite_loss_with_finite_gradient_is_skipped_too(client):
    client.backward(lambda model: (model.weight.sum() + math.inf, {}))
    output = client.optim_step(sgd(client)).result()
    assert output.grad_norm == 1.0
    assert output.metrics["non_finite"] == 1.0


def test_a_finite_loss_with_non_finite_gradient_is_skipped_too(client):
    # the root of 0 is 0, its slope infinite
    client.backward(lambda model: (model.weight.sqrt().sum(), {}))
    assert client.optim_step(sgd(client)).result().metrics["non_finite"] == 1.0
    assert client.model.weight.item() == 0.0


def test_means_step_when_the_window_is_full():
    with ForwardBackwardPipeline(UniformModel(4), gradient_accumulation_steps=3) as pipeline:
        optimizer = sgd(pipeline)
        outputs = []
        for _ in range(6):
            pipeline.forward_backward(torch.tensor([[0, 1]]))
            outputs.append(pipeline.optim_step(optimizer))
        results = [output.result() for output in outputs]
        assert [result.step for result in results] == [0, 0, 1, 1, 1, 2]
        assert [result.metrics.get("skipped", 0.0) for result in results] == [1.0, 1.0, 0.0] * 2


def test_two_kinds_of_loss_in_one_window_are_refused():
    with AsyncTrainingClient(UniformModel(4), gradient_accumulation_steps=2) as client:
        client.forward_backward({"input_ids": torch.tensor([[0, 1]])})
        with pytest.raises(ConfigError, match="has no meaning"):
            client.backward(lambda model: (model.logit.sum(), {})).result()


def test_an_optimizer_of_another_model_is_refused(client):
    client.backward(slope(1.0))
    with pytest.raises(ConfigError, match="no gradient on any parameter"):
        client.optim_step(torch.optim.SGD(OneNumber().parameters(), lr=1.0)).result()


# Failures.


def test_a_failed_micro_batch_blocks_its_step_and_no_later_one(client):
    optimizer = sgd(client)
    client.backward(slope(1.0))
    client.backward(broken)
    third = client.backward(slope(1.0))
    step = client.optim_step(optimizer)
    with pytest.raises(DataError, match=r"Micro-batch 1 \(counted from 0\).*row 7") as caught:
        step.result()
    assert str(caught.value.__cause__) == "row 7 has no tokens"
    assert isinstance(third.exception(), DataError)
    assert (client.model.weight.item(), client.model.weight.grad) == (0.0, None)
    client.backward(slope(0.5))
    assert client.optim_step(optimizer).result().step == 1
    assert client.model.weight.item() == -0.5


def test_a_failed_micro_batch_clears_the_gradients_at_once(client):
    client.backward(slope(1.0))
    client.backward(broken).exception()
    assert client.model.weight.grad is None


def test_an_error_of_another_library_arrives_as_ours_with_its_cause(client):
    client.backward(lambda model: (torch.ones(2, 3) @ model.weight, {}))
    step = client.optim_step(sgd(client))
    error = step.exception()
    assert type(error) is RLCoreError
    assert type(error.__cause__) is RuntimeError


def test_evaluation_goes_on_in_a_failed_window(client):
    client.backward(broken)
    assert client.evaluate(lambda model: model.weight.item()).result() == 0.0


def test_a_cancelled_micro_batch_fails_its_step(client):
    gate = threading.Event()
    client.evaluate(lambda model: gate.wait())
    client.backward(slope(1.0))
    cancelled = client.backward(slope(1.0))
    step = client.optim_step(sgd(client))
    assert cancelled.cancel()
    gate.set()
    with pytest.raises(RLCoreError, match="Micro-batch 1.*CancelledError"):
        step.result()
    with pytest.raises(concurrent.futures.CancelledError):
        cancelled.result()
    assert client.model.weight.item() == 0.0


def test_a_cancelled_step_takes_its_window_with_it(client):
    gate = threading.Event()
    client.evaluate(lambda model: gate.wait())
    client.backward(slope(1.0))
    assert client.optim_step(sgd(client)).cancel()
    client.backward(slope(0.5))
    step = client.optim_step(sgd(client))
    gate.set()
    assert step.result().grad_norm == 0.5


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda model: (model.weight, {}), r"a tensor of shape \[1\]"),
        (lambda model: (1.0, {}), "float as loss"),
        (lambda model: (model.weight.detach().sum(), {}), "without gradient"),
        (lambda model: model.weight.sum(), "Tensor from the loss function"),
        (lambda model: (model.weight.sum(), {"x": torch.zeros(2)}), r"Metric 'x': found shape \[2\]"),
    ],
)
def test_a_wrong_answer_of_the_loss_function_is_a_data_error(client, loss_fn, message):
    with pytest.raises(DataError, match=message):
        client.backward(loss_fn).result()


def test_shutdown_ends_a_client_for_good_and_may_be_repeated(client):
    client.shutdown()
    client.shutdown()
    with pytest.raises(RLCoreError, match="after shutdown"):
        client.backward(slope(1.0))


def test_shutdown_logs_errors_that_nobody_asked_for(client, caplog):
    client.evaluate(lambda model: 1 / 0)
    client.backward(broken).exception()
    client.optim_step(sgd(client)).exception()
    with caplog.at_level(logging.ERROR):
        client.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "Queued work failed and nobody asked for its result: ZeroDivisionError: division by zero"
    ]


def test_an_error_in_the_block_drops_the_queued_work():
    gate, seen = threading.Event(), []

    def fail() -> None:
        with AsyncTrainingClient(OneNumber()) as client:
            client.evaluate(lambda model: gate.wait())
            seen.append(client.evaluate(lambda model: seen.append("ran")))
            threading.Timer(0.05, gate.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    (dropped,) = seen
    with pytest.raises(concurrent.futures.CancelledError):
        dropped.result()


def test_a_forgotten_client_frees_its_model_and_ends_its_thread():
    client = AsyncTrainingClient(OneNumber())
    client.backward(slope(1.0)).result()
    model, thread = weakref.ref(client.model), client._worker._thread
    del client
    gc.collect()
    thread.join(timeout=10)
    assert model() is None
    assert not thread.is_alive()


def test_a_future_keeps_its_client_until_it_is_done():
    for _ in range(20):
        assert AsyncTrainingClient(OneNumber()).evaluate(lambda model: "done").result(timeout=10) == "done"


def test_a_failed_future_does_not_hold_itself(client):
    gc.disable()
    try:
        future = client.evaluate(lambda model: 1 / 0)
        future.exception()
        reference = weakref.ref(future)
        client.evaluate(lambda model: None).result()
        del future
        assert reference() is None
    finally:
        gc.enable()


def test_a_gradient_limit_of_zero_is_refused(client):
    with pytest.raises(ConfigError, match="max_grad_norm=0"):
        client.optim_step(sgd(client), max_grad_norm=0)
