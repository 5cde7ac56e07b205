"""The gradients of one model between two optimiser steps.

An optimiser step and the micro-batches before it form a window. A window makes its step or changes nothing.
A model has one set of gradients, so of several clients of one model a single one has a window open at a time.
"""

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.forward_backward.future import ForwardBackwardOutput, OptimStepOutput
from rlcore.processes import Processes, sums
from rlcore.sampling import is_number

LossFunction = Callable[[nn.Module], tuple[Tensor, Mapping[str, Tensor | float]]]
"""`loss_fn(model)`: a scalar loss, and metrics to report."""


class MicroBatchLoss(NamedTuple):
    """What a forward pass hands to the backward pass."""

    loss: Tensor
    metrics: Mapping[str, Tensor | float]
    logits: Tensor | None = None
    logprobs: Tensor | None = None


@dataclass
class Window:
    """The micro-batches since the last optimiser step, of one process or of all."""

    micro_batches: int = 0
    most_of_a_process: int = 0
    """Micro-batches of the process that has most; only known of all processes together."""
    holds_means: bool = False
    holds_sums: bool = False
    non_finite: bool = False
    out_of_memory: bool = False
    loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass(frozen=True)
class Update:
    """How a window becomes an optimiser step.

    Raises:
        ConfigError: max_grad_norm is no number above 0; the optimizer is none of torch's, or one that calls the model
            itself; the scheduler is none of torch's, waits for a metric, or is of another optimizer.
    """

    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    """Stepped after each real optimiser step."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this L2 norm; None does not clip."""

    def __post_init__(self) -> None:
        limit = self.max_grad_norm
        if limit is not None and not (is_number(limit) and limit > 0):
            raise ConfigError(
                f"Found max_grad_norm={limit!r}, expected a number above 0. Pass None to leave gradients unclipped."
            )
        _check_optimizer(self.optimizer)
        if self.scheduler is not None:
            _check_scheduler(self.scheduler, self.optimizer)


_open: "weakref.WeakKeyDictionary[Accumulation, set[int]]" = weakref.WeakKeyDictionary()
"""Those with micro-batches that wait for their step, and the identities of the weights whose gradients wait."""
_opening = threading.Lock()


class Accumulation:
    """Backward passes of one model, and the optimiser steps over them. Everything is called in the lane's thread.

    Args:
        model: trained in place.
        processes: each adds its own micro-batches to a window.
        means_per_step: micro-batches of a mean loss that make one optimiser step.

    Attributes:
        window: since the last step.
        steps: optimiser steps made so far.
    """

    def __init__(self, model: nn.Module, processes: Processes, means_per_step: int):
        self.model, self.processes, self.means_per_step = model, processes, means_per_step
        self.window = Window()
        self.steps = 0

    def add(self, forward: Callable[[nn.Module], MicroBatchLoss], *, is_mean: bool) -> ForwardBackwardOutput:
        """Forward and backward pass of one micro-batch.

        Args:
            forward: called with the model, gradients on.
            is_mean: the loss is a mean over the micro-batch, rather than divided by the counts of the whole step.
        """
        window = self.window
        if window.error is not None:
            raise failure_of(window)
        self._hold_model()
        if window.holds_sums if is_mean else window.holds_means:
            raise _two_kinds()
        with torch.enable_grad():
            result = forward(self.model)
            _check_scalars(result)
            share = self.means_per_step if is_mean else 1
            torch.autograd.backward(result.loss / share if share > 1 else result.loss)
        loss = result.loss.item()  # after the backward pass: waits for the device, so execution_time holds both passes
        metrics = {name: float(value) for name, value in result.metrics.items()}
        window.micro_batches += 1
        window.holds_means |= is_mean
        window.holds_sums |= not is_mean
        window.non_finite |= not math.isfinite(loss)
        window.loss += loss
        window.metrics = sums([window.metrics, metrics])
        return ForwardBackwardOutput(loss, metrics, result.logits, result.logprobs)

    def of_all_processes(self) -> Window:
        """The windows of all processes as one (collective)."""
        failure = None if self.window.error is None else failure_of(self.window)
        windows = self.processes.gather(replace(self.window, error=failure))
        failures = [_elsewhere(window.error) for window in windows if window.error is not None]
        return Window(
            micro_batches=sum(window.micro_batches for window in windows),
            most_of_a_process=max(window.micro_batches for window in windows),
            holds_means=any(window.holds_means for window in windows),
            holds_sums=any(window.holds_sums for window in windows),
            non_finite=any(window.non_finite for window in windows),
            out_of_memory=any(window.out_of_memory for window in windows),
            loss=sum(window.loss for window in windows),
            metrics=sums(window.metrics for window in windows),
            error=failure or next(iter(failures), None),
        )

    def step(self, whole: Window, update: Update, least_means: int = 1) -> OptimStepOutput:
        """One optimiser step, or none where there is nothing to learn from or a number is not finite (collective).

        Args:
            whole: what of_all_processes returned.
            update: how to step.
            least_means: mean micro-batches below which a window waits for more.
        """
        if whole.error is not None:
            raise whole.error
        if whole.holds_means and whole.holds_sums:
            raise _two_kinds()
        optimizer = update.optimizer
        learning_rate = float(optimizer.param_groups[0]["lr"])
        if whole.most_of_a_process < (least_means if whole.holds_means else 1):
            return OptimStepOutput(self.steps, learning_rate, 0.0, {"skipped": 1.0})
        trained = self._gradients_of_all_processes(optimizer, whole)
        total_norm = nn.utils.get_total_norm(parameter.grad for parameter in trained if parameter.grad is not None)
        grad_norm = total_norm.item()
        if whole.non_finite or not math.isfinite(grad_norm):
            self.clear(optimizer)
            return OptimStepOutput(self.steps, learning_rate, grad_norm, {"skipped": 1.0, "non_finite": 1.0})
        if update.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(trained, update.max_grad_norm, total_norm)
        optimizer.step()
        self.steps += 1
        self.clear(optimizer)
        # Last: where the scheduler fails, the step was made and counts.
        if update.scheduler is not None:
            update.scheduler.step()
        return OptimStepOutput(self.steps, learning_rate, grad_norm)

    def fail(self, error: BaseException) -> None:
        """Let the rest of the window fail with this error."""
        if self.window.error is None:
            self.window.error = error
        if not self._another_holds_model():
            self.model.zero_grad(set_to_none=True)

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin a new window, without gradients."""
        self.window = Window()
        if not self._another_holds_model():
            optimizer.zero_grad(set_to_none=True)
            self.model.zero_grad(set_to_none=True)
        self.release()

    def release(self) -> None:
        """Let another client train the model, whether the window made its step or not."""
        with _opening:
            _open.pop(self, None)

    def _hold_model(self) -> None:
        with _opening:
            if self in _open:
                return
            own = self._trained_weights()
            if self._is_held_elsewhere(own):
                raise ConfigError(
                    "Found another client of this model with micro-batches that wait for their optimiser step; both "
                    "would add to the same gradients. Call its optim_step() or shutdown() first."
                )
            _open[self] = own

    def _another_holds_model(self) -> bool:
        with _opening:
            return self._is_held_elsewhere(self._trained_weights())

    def _is_held_elsewhere(self, own: set[int]) -> bool:
        """Whether another window's gradients are on weights of this model, which may be part of a module there."""
        return any(other is not self and not own.isdisjoint(waiting) for other, waiting in _open.items())

    def _trained_weights(self) -> set[int]:
        return {id(parameter) for parameter in self.model.parameters() if parameter.requires_grad}

    def _gradients_of_all_processes(self, optimizer: torch.optim.Optimizer, whole: Window) -> list[nn.Parameter]:
        """What the optimizer trains in this step; gradients are the sum over all micro-batches, or their mean."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.processes.sum_gradients(parameters)
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        if not trained:
            raise ConfigError(
                "Found no gradient on any parameter of the optimizer, expected those of the client's model. "
                "Make the optimizer from model.parameters() of that model."
            )
        if whole.holds_means and whole.micro_batches != self.means_per_step:
            correction = self.means_per_step / whole.micro_batches
            torch._foreach_mul_([parameter.grad for parameter in trained], correction)
        return trained


def loss_and_metrics(returned: object) -> MicroBatchLoss:
    """What a LossFunction returned.

    Raises:
        DataError: it is not a loss and a mapping of metrics.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise DataError(
            f"Found {type(returned).__name__} from the loss function, expected a scalar loss and a mapping of metrics. "
            "Return `loss, {}` where there is nothing to report."
        )
    if not isinstance(returned[1], Mapping):
        raise DataError(
            f"Found metrics of type {type(returned[1]).__name__} from the loss function, expected a mapping from "
            "names to numbers. Return `loss, {}` where there is nothing to report."
        )
    return MicroBatchLoss(*returned)


def failure_of(window: Window) -> RLCoreError:
    """What the rest of a failed window raises."""
    cause = window.error
    # A caller who waits for the step alone still learns whether data, settings or the machine were at fault.
    kind = type(cause) if isinstance(cause, RLCoreError) else RLCoreError
    failure = kind(
        f"Micro-batch {window.micro_batches} (counted from 0) of this optimiser step failed with "
        f"{type(cause).__name__} ({cause}), so no step was made and the gradients are cleared. "
        "Mend the cause and queue the whole step again; the client is usable after this optim_step()."
    )
    failure.__cause__ = cause
    return failure


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"Found {optimizer!r} as optimizer, expected one of torch's. "
            "Make it from the model, such as torch.optim.AdamW(model.parameters())."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "Found LBFGS, which calls the model itself, expected an optimizer that steps along given gradients. "
            "Use AdamW or SGD."
        )


def _check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    schedulers = torch.optim.lr_scheduler
    if not isinstance(scheduler, schedulers.LRScheduler):
        raise ConfigError(
            f"Found {scheduler!r} as scheduler, expected one of torch.optim.lr_scheduler. Pass None to keep the rate."
        )
    if isinstance(scheduler, schedulers.ReduceLROnPlateau):
        raise ConfigError(
            "Found ReduceLROnPlateau, which needs a metric at each step, expected a scheduler that counts steps. "
            "Leave it out here and call its step(metric) yourself after an evaluation."
        )
    if scheduler.optimizer is not optimizer:
        raise ConfigError(
            "Found a scheduler of another optimizer, expected one of the optimizer that makes the step. "
            "Make the scheduler from it."
        )


def _elsewhere(error: BaseException) -> BaseException:
    return type(error)(f"In another process: {error}")


def _two_kinds() -> ConfigError:
    return ConfigError(
        "Found a loss over counts and a mean loss in one optimiser step; their sum has no meaning. "
        "Use either backward() or the forward_backward() forms between two optim_step() calls."
    )


def _check_scalars(result: MicroBatchLoss) -> None:
    loss = result.loss
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise DataError(f"Found {found} as loss, expected a scalar tensor. Reduce it in the loss function.")
    if loss.is_complex():
        raise DataError("Found a complex loss, expected a real number. Take its real part or its size.")
    if not loss.requires_grad:
        raise DataError(
            "Found a loss without gradient. Compute it from the model that the loss function gets, "
            "with at least one trainable parameter and without no_grad() or detach()."
        )
    for name, value in result.metrics.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise DataError(f"Metric {name!r}: found shape {list(value.shape)}, expected one number. Reduce it.")
        if not isinstance(value, Tensor | Real):
            raise DataError(f"Metric {name!r}: found {value!r}, expected a number. Leave out what is none.")
