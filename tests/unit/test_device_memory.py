"""A device without memory: the same step and the same results from smaller parts, and where that ends."""

import logging

import pytest
import torch
from torch import nn

from rlcore.errors import DeviceMemoryError
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.forward_backward.memory import ran_out_of_memory
from tests.support.lane_models import RaggedRows, sgd
from tests.support.tiny import tiny_llama

ROWS = RaggedRows(8)
STEP = list(range(8))


class SmallDevice:
    """A loss that runs out of memory for more than `capacity` rows, in the middle of its backward pass."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.sizes: list[int] = []

    def loss_of(self, part: list[int]):
        self.sizes.append(len(part))
        whole = ROWS.loss_of(STEP)(part)

        def loss_fn(model: nn.Module):
            last_layer = model.model.layers[-1]
            watched = last_layer.register_forward_hook(lambda module, inputs, hidden: self._watch(model, hidden))
            try:
                return whole(model)
            finally:
                watched.remove()

        def checked(model: nn.Module):
            return loss_fn(model) if len(part) > self.capacity else whole(model)

        return checked

    def _watch(self, model: nn.Module, hidden: torch.Tensor) -> None:
        def fail(gradient: torch.Tensor) -> None:
            # gradients of the layers behind are there already
            assert model.model.norm.weight.grad is not None
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

        hidden.register_hook(fail)


def step(client: AsyncTrainingClient, device: SmallDevice, micro_batch_size: int = 8):
    return client.train_step(STEP, device.loss_of, sgd(client), micro_batch_size=micro_batch_size, max_grad_norm=None)


def test_halved_micro_batches_give_the_same_gradient(caplog):
    undisturbed, small = SmallDevice(8), SmallDevice(3)
    with AsyncTrainingClient(tiny_llama().train()) as plain, AsyncTrainingClient(tiny_llama().train()) as client:
        expected = step(plain, undisturbed)
        with caplog.at_level(logging.WARNING):
            output = step(client, small)
        for name, weight in client.model.named_parameters():
            torch.testing.assert_close(weight, plain.model.get_parameter(name), atol=1e-6, rtol=0)
    assert output.loss == pytest.approx(expected.loss, abs=1e-6)
    assert output.metrics == expected.metrics
    assert output.grad_norm == pytest.approx(expected.grad_norm, abs=1e-6)
    # 8 fail, the first 4 fail, then four times 2
    assert (undisturbed.sizes, small.sizes) == ([8], [8, 4, 2, 2, 2, 2])
    assert [record.getMessage() for record in caplog.records] == [
        "The device ran out of memory in a forward and backward pass of 8 rows. Going on with 4.",
        "The device ran out of memory in a forward and backward pass of 4 rows. Going on with 2.",
    ]


def test_the_client_remembers_what_was_too_much(caplog):
    with AsyncTrainingClient(tiny_llama()) as client:
        step(client, SmallDevice(4))
        caplog.clear()
        later = SmallDevice(8)
        step(client, later)
        assert later.sizes == [4, 4]
        assert not caplog.records
        assert client.evaluate_in_parts(STEP, lambda model, part: len(part)) == [8]


def test_a_limit_above_the_rows_at_hand_is_not_tried_twice():
    # 8 rows in micro-batches of up to 64: half of 64 would be the same 8 again
    small = SmallDevice(4)
    with AsyncTrainingClient(tiny_llama()) as client:
        step(client, small, micro_batch_size=64)
    assert small.sizes == [8, 4, 4]


def test_one_row_that_does_not_fit_ends_training_with_advice_and_unchanged_weights():
    with AsyncTrainingClient(tiny_llama()) as client:
        with pytest.raises(DeviceMemoryError, match=r"of a single row\. Lower the maximum lengths \(max_length"):
            step(client, SmallDevice(0))
        for name, weight in client.model.named_parameters():
            assert weight.grad is None
            assert torch.equal(weight, tiny_llama().get_parameter(name))
        assert step(client, SmallDevice(8)).step == 1


def test_evaluations_are_halved_and_go_on_where_they_were(caplog):
    calls = []

    def measure(model: nn.Module, part: list[int]) -> list[int]:
        calls.append(part)
        if len(part) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return part

    with AsyncTrainingClient(tiny_llama()) as client:
        assert client.evaluate_in_parts(range(7), measure, part_size=5) == [[0, 1], [2, 3], [4, 5], [6]]
        assert [len(part) for part in calls] == [5, 2, 2, 2, 1]
        assert "in an evaluation of 5 rows. Going on with 2." in caplog.text
        assert client.evaluate_in_parts(range(3), measure) == [[0, 1], [2]]
        trained = SmallDevice(8)
        step(client, trained)
        assert trained.sizes == [8]


def test_an_evaluation_of_one_row_that_does_not_fit_is_an_error():
    def measure(model: nn.Module, part: list[int]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with AsyncTrainingClient(tiny_llama()) as client, pytest.raises(DeviceMemoryError, match="an evaluation"):
        client.evaluate_in_parts([1, 2], measure)


def test_another_runtime_error_is_not_taken_for_missing_memory():
    def measure(model: nn.Module, part: list[int]) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with AsyncTrainingClient(tiny_llama()) as client, pytest.raises(RuntimeError, match="cannot be multiplied"):
        client.evaluate_in_parts([1, 2], measure)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError("[enforce fail] CPUAllocator: can't allocate memory: you tried to get 9 bytes"),
            True,
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_counts_as_missing_memory(error, expected):
    assert ran_out_of_memory(error) is expected
