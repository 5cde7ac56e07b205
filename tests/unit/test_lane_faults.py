"""What a lane refuses before it begins, and what it survives: optimizers, schedulers, forks, failing clean-ups."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rlcore.errors import ConfigError
from rlcore.forward_backward import AsyncTrainingClient
from tests.support.lane_models import OneNumber, sgd

schedulers = torch.optim.lr_scheduler


@pytest.fixture
def client() -> Iterator[AsyncTrainingClient]:
    with AsyncTrainingClient(OneNumber()) as client:
        yield client


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def slope(model: OneNumber):
    """A loss whose gradient is 1."""
    return model.weight.sum(), {}


def raises(*arguments: object) -> None:
    raise ZeroDivisionError("own fault")


# Optimizers and schedulers.


@pytest.mark.parametrize("optimizer", ["adam", None, torch.optim.SGD])
def test_what_is_no_optimizer_is_refused_at_the_door_and_the_client_goes_on(client, optimizer):
    client.backward(slope)
    with pytest.raises(ConfigError, match="as optimizer, expected one of torch's"):
        client.optim_step(optimizer)
    with pytest.raises(ConfigError, match="as optimizer, expected one of torch's"):
        client.flush(optimizer)
    with pytest.raises(ConfigError, match="as optimizer, expected one of torch's"):
        client.train_step([0], lambda part: slope, optimizer, micro_batch_size=1, max_grad_norm=None)
    assert client.optim_step(sgd(client)).result(timeout=10).step == 1


def test_an_optimizer_that_calls_the_model_itself_is_refused(client):
    with pytest.raises(ConfigError, match="LBFGS"):
        client.optim_step(torch.optim.LBFGS(client.model.parameters()))


@pytest.mark.parametrize(
    ("scheduler_of", "message"),
    [
        (lambda optimizer: schedulers.ReduceLROnPlateau(optimizer), "ReduceLROnPlateau, which needs a metric"),
        (lambda optimizer: "cosine", "Found 'cosine' as scheduler"),
        (lambda optimizer: schedulers.ConstantLR(torch.optim.SGD([torch.ones(1)])), "a scheduler of another optimizer"),
    ],
)
def test_a_scheduler_that_cannot_go_with_the_step_is_refused_before_it(client, scheduler_of, message):
    client.backward(slope).result()
    optimizer = sgd(client)
    with pytest.raises(ConfigError, match=message):
        client.optim_step(optimizer, scheduler_of(optimizer))
    assert client.evaluate(lambda model: model.weight.item()).result() == 0.0


def test_a_step_whose_scheduler_fails_was_made_and_counts(client):
    # rate 1, gradient 1: the weight goes to -1 with the first step, to -2 with the second
    optimizer = sgd(client)
    scheduler = schedulers.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 1 / 0)
    client.backward(slope)
    assert isinstance(client.optim_step(optimizer, scheduler, None).exception(), ZeroDivisionError)
    client.backward(slope)
    assert client.optim_step(optimizer, max_grad_norm=None).result().step == 2
    assert client.evaluate(lambda model: model.weight.item()).result() == -2.0


@pytest.mark.parametrize("limit", ["a", True, float("nan")])
def test_a_gradient_limit_that_is_no_number_is_refused(client, limit):
    with pytest.raises(ConfigError, match="max_grad_norm="):
        client.optim_step(sgd(client), max_grad_norm=limit)


# The thread.


def test_a_clean_up_that_fails_neither_ends_the_thread_nor_keeps_a_result_back(client):
    class Faulty(torch.optim.SGD):
        zero_grad = raises

    optimizer = Faulty(client.model.parameters(), lr=1.0)
    client.backward(raises)
    assert "own fault" in str(client.optim_step(optimizer).exception(timeout=10))
    assert client.evaluate(lambda model: "alive").result(timeout=10) == "alive"


def test_a_cancelled_step_whose_clean_up_fails_does_not_end_the_thread(client, gate):
    class Faulty(torch.optim.SGD):
        zero_grad = raises

    begin = client.evaluate(lambda model: gate.wait(10))
    step = client.optim_step(Faulty(client.model.parameters(), lr=1.0))
    assert step.cancel()
    gate.set()
    begin.result(timeout=10)
    assert client.evaluate(lambda model: "alive").result(timeout=10) == "alive"


def test_a_forked_process_is_told_that_the_thread_stayed_behind(client, gate):
    waiting = client.evaluate(lambda model: gate.wait(10))
    read, write = os.pipe()
    if os.fork() == 0:
        told = []
        for call in (lambda: client.backward(slope).result(timeout=5), lambda: waiting.result(timeout=5)):
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - told to the parent
                told.append(f"{type(error).__name__}: {error}")
        os.write(write, "\n".join(told).encode())
        os._exit(0)
    os.wait()
    gate.set()
    work, wait = os.read(read, 10_000).decode().splitlines()
    assert work.startswith("RLCoreError: Found new work in process")
    assert wait.startswith("RLCoreError: Found a wait for work whose thread is not in this process")
    assert client.evaluate(lambda model: "alive").result(timeout=10) == "alive"


# Two clients of one model.


def test_gradients_that_wait_for_their_step_are_not_mixed_with_another_clients(client):
    # each step: rate 1 along a gradient of 1
    with AsyncTrainingClient(client.model) as other:
        client.backward(slope).result()
        assert "another client of this model" in str(other.backward(slope).exception())
        assert "another client of this model" in str(other.optim_step(sgd(other)).exception())
        assert client.optim_step(sgd(client)).result().grad_norm == 1.0
        assert other.train_step([0], lambda part: slope, sgd(other), micro_batch_size=1, max_grad_norm=None).step == 1


class Wrapper(nn.Module):
    """A module around another one, as a critic or adapters are, with a weight of its own."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.own = inner, nn.Parameter(torch.zeros(1))

    @property
    def weight(self) -> nn.Parameter:
        return self.inner.weight


def test_gradients_of_a_model_inside_of_two_others_are_not_mixed(client):
    # each step: rate 1 along a gradient of 1
    with AsyncTrainingClient(Wrapper(client.model)) as outer, AsyncTrainingClient(Wrapper(client.model)) as another:
        outer.backward(slope).result()
        for refused in (client, another):
            assert "another client of this model" in str(refused.backward(slope).exception())
            assert refused.optim_step(sgd(refused)).exception() is not None
        assert outer.optim_step(sgd(outer), max_grad_norm=None).result().grad_norm == 1.0
        assert client.backward(slope).result().loss == -1.0


def test_modules_that_share_frozen_weights_alone_are_trained_side_by_side(client):
    client.model.requires_grad_(False)
    first, second = Wrapper(client.model), Wrapper(client.model)
    with AsyncTrainingClient(first) as one, AsyncTrainingClient(second) as two:
        futures = [each.backward(lambda model: (model.own.sum(), {})) for each in (one, two)]
        assert [future.result().loss for future in futures] == [0.0, 0.0]


def test_a_client_that_holds_nothing_leaves_the_gradients_of_another_alone(client):
    with AsyncTrainingClient(Wrapper(client.model)) as other:
        client.backward(slope).result()
        with pytest.raises(ConfigError, match="another client of this model"):
            other.train_step([0], lambda part: slope, sgd(other), micro_batch_size=1, max_grad_norm=None)
        assert client.optim_step(sgd(client)).result().grad_norm == 1.0


def test_a_client_that_ended_in_the_middle_holds_no_model():
    model = OneNumber()
    with AsyncTrainingClient(model) as first:
        first.backward(slope)
    forgotten = AsyncTrainingClient(model)
    forgotten.backward(slope).result()
    del forgotten
    gc.collect()
    with AsyncTrainingClient(model) as client:
        assert client.backward(slope).result().loss == 0.0
