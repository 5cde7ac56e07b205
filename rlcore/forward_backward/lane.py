"""The one ordered lane through which everything reaches a model that is being trained.

An optimiser step and the micro-batches queued before it form a window. A window makes its step or changes nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.forward_backward.future import AsyncTrainingFuture, ForwardBackwardOutput, OptimStepOutput
from rlcore.forward_backward.processes import launched_processes
from rlcore.forward_backward.worker import Worker
from rlcore.models import evaluation_mode, reference_of

ResultT = TypeVar("ResultT")
LossFunction = Callable[[nn.Module], tuple[Tensor, Mapping[str, Tensor | float]]]


class MicroBatchLoss(NamedTuple):
    """What a forward pass hands to the backward pass."""

    loss: Tensor
    metrics: Mapping[str, Tensor | float]
    logits: Tensor | None = None
    logprobs: Tensor | None = None


@dataclass
class _Window:
    """The micro-batches since the last optimiser step."""

    micro_batches: int = 0
    holds_means: bool = False
    non_finite: bool = False
    error: BaseException | None = None


class Lane:
    """Trains one model in one thread: work is done in the order in which it was queued, whoever queued it.

    Launched in several processes, each trains its replica on its own rows and an optimiser step uses the mean of their
    gradients; every process has to queue the same steps.

    Work does not see autocast or another setting that belongs to the caller's thread; enter it inside the work. Dropout
    draws from torch's global generator: code that draws from it too while work is queued makes runs differ.
    """

    def __init__(
        self,
        model: nn.Module,
        reference_model: nn.Module | None = None,
        device: str | torch.device | None = None,
        gradient_accumulation_steps: int = 1,
    ):
        if gradient_accumulation_steps < 1:
            raise ConfigError(
                f"Found gradient_accumulation_steps={gradient_accumulation_steps}, expected at least 1. "
                "Pass the number of micro-batches that make one optimiser step."
            )
        if reference_model is model:
            raise ConfigError(
                "Found the same object as model and reference_model; a reference must not move with the policy. "
                "Pass a copy, or leave it out where the model has LoRA adapters."
            )
        self._processes = launched_processes()
        device = self._processes.device or device
        self.model = model if device is None else model.to(device)
        self._processes.copy_from_first(model)
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.reference_model = reference_model
        if reference_model is not None:
            reference_model.to(self.device).eval().requires_grad_(False)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self._window = _Window()
        self._steps = 0
        self._worker = Worker(self.device)

    def backward(self, loss_fn: LossFunction) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue a forward and a backward pass; gradients add up until the next `optim_step`.

        Args:
            loss_fn: called with the model, gradients on. Returns a scalar loss, divided by the counts of the whole
                optimiser step, and metrics to report. The loss is not divided again.

        Returns:
            future of the loss and the metrics. It raises DataError for a loss that is no scalar or has no gradient.
            After a failed micro-batch the rest of its window fails with that error, up to and including the next
            optim_step.
        """
        return self._queue_micro_batch(lambda model: _loss_and_metrics(loss_fn(model)), is_mean=False)

    def evaluate(
        self, fn: Callable[[nn.Module], ResultT], *, use_reference: bool = False
    ) -> AsyncTrainingFuture[ResultT]:
        """Queue fn(model) without gradients and in evaluation mode; the mode of every module is restored after it.

        Args:
            fn: called with the policy as the work queued before leaves it, or with the reference.
            use_reference: the reference model, or the policy with its LoRA adapters switched off where there is none.

        Raises:
            ConfigError: use_reference with neither a reference model nor adapters.
        """
        if use_reference and self.reference_model is None and not _has_adapters(self.model):
            raise ConfigError(
                "Found use_reference=True but no reference model, and no LoRA adapters to switch off. "
                "Pass reference_model to the client."
            )
        return self._worker.submit(partial(self._run_evaluation, fn, use_reference), _ignore)

    def optim_step(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float | None = 1.0,
    ) -> AsyncTrainingFuture[OptimStepOutput]:
        """Queue an optimiser step over the micro-batches since the last one: clip, step, schedule, clear the gradients.

        A window of means steps once it holds gradient_accumulation_steps micro-batches, along the mean of their
        gradients; before that the output says `skipped`. A non-finite loss or gradient skips the step and clears the
        window.

        Args:
            optimizer: holds every trained parameter; learning rates of their own are parameter groups.
            scheduler: stepped after each real optimiser step.
            max_grad_norm: gradients are scaled down to this L2 norm; None does not clip.
        """
        return self._queue_step(optimizer, scheduler, max_grad_norm, self.gradient_accumulation_steps)

    def flush(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float | None = 1.0,
    ) -> AsyncTrainingFuture[OptimStepOutput]:
        """Queue the step of a last window that stayed short, along the mean of the micro-batches it has."""
        return self._queue_step(optimizer, scheduler, max_grad_norm, 1)

    def shutdown(self) -> None:
        """Finish the queued work, end the thread and log the errors that nobody asked for. Idempotent."""
        self._worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_queued=error is not None)

    def _queue_micro_batch(
        self, forward: Callable[[nn.Module], MicroBatchLoss], *, is_mean: bool
    ) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue one micro-batch. A mean is divided by gradient_accumulation_steps, a loss over counts is not."""
        return self._worker.submit(partial(self._run_micro_batch, forward, is_mean), self._fail_window)

    def _queue_step(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        max_grad_norm: float | None,
        least_means: int,
    ) -> AsyncTrainingFuture[OptimStepOutput]:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ConfigError(
                f"Found max_grad_norm={max_grad_norm}, expected more than 0. Pass None to leave gradients unclipped."
            )
        step = partial(self._run_step, optimizer, scheduler, max_grad_norm, least_means)
        return self._worker.submit(step, lambda error: self._drop_window(optimizer))

    def _run_micro_batch(self, forward: Callable[[nn.Module], MicroBatchLoss], is_mean: bool) -> ForwardBackwardOutput:
        window = self._window
        if window.error is not None:
            raise _failure_of(window)
        if window.micro_batches and window.holds_means != is_mean:
            raise ConfigError(
                "Found a loss over counts and a mean loss in one optimiser step; their sum has no meaning. "
                "Use either backward() or the forward_backward() forms between two optim_step() calls."
            )
        with torch.enable_grad():
            result = forward(self.model)
            _check_scalars(result)
            share = self.gradient_accumulation_steps if is_mean else 1
            torch.autograd.backward(result.loss / share if share > 1 else result.loss)
        loss = result.loss.item()  # after the backward pass: waits for the device, so execution_time holds both passes
        metrics = {name: float(value) for name, value in result.metrics.items()}
        window.micro_batches += 1
        window.holds_means = is_mean
        window.non_finite |= not math.isfinite(loss)
        return ForwardBackwardOutput(loss, metrics, result.logits, result.logprobs)

    def _run_evaluation(self, fn: Callable[[nn.Module], ResultT], use_reference: bool) -> ResultT:
        with torch.no_grad():
            if not use_reference:
                with evaluation_mode(self.model):
                    return fn(self.model)
            if self.reference_model is not None:
                with evaluation_mode(self.reference_model):
                    return fn(self.reference_model)
            with reference_of(self.model) as reference:
                return fn(reference)

    def _run_step(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        max_grad_norm: float | None,
        least_means: int,
    ) -> OptimStepOutput:
        window = self._window
        if self._processes.any(window.error is not None):
            raise _failure_of(window)
        learning_rate = float(optimizer.param_groups[0]["lr"])
        if window.micro_batches < (least_means if window.holds_means else 1):
            return OptimStepOutput(self._steps, learning_rate, 0.0, {"skipped": 1.0})
        trained = self._parameters_with_gradient(optimizer)
        total_norm = nn.utils.get_total_norm(parameter.grad for parameter in trained if parameter.grad is not None)
        grad_norm = total_norm.item()
        if self._processes.any(window.non_finite or not math.isfinite(grad_norm)):
            self._drop_window(optimizer)
            return OptimStepOutput(self._steps, learning_rate, grad_norm, {"skipped": 1.0, "non_finite": 1.0})
        if max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(trained, max_grad_norm, total_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        self._steps += 1
        self._drop_window(optimizer)
        return OptimStepOutput(self._steps, learning_rate, grad_norm)

    def _parameters_with_gradient(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        """What the optimizer trains in this step, gradients averaged over processes and over a short window."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._processes.average_gradients(parameters)
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        if not trained:
            raise ConfigError(
                "Found no gradient on any parameter of the optimizer, expected those of the client's model. "
                "Make the optimizer from model.parameters() of that model."
            )
        if self._window.holds_means and self._window.micro_batches != self.gradient_accumulation_steps:
            correction = self.gradient_accumulation_steps / self._window.micro_batches
            torch._foreach_mul_([parameter.grad for parameter in trained], correction)
        return trained

    def _fail_window(self, error: BaseException) -> None:
        if self._window.error is None:
            self._window.error = error
        self.model.zero_grad(set_to_none=True)

    def _drop_window(self, optimizer: torch.optim.Optimizer) -> None:
        self._window = _Window()
        optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)


def _failure_of(window: _Window) -> RLCoreError:
    """What the rest of a failed window raises."""
    cause = window.error
    if cause is None:
        return RLCoreError("A micro-batch of this optimiser step failed in another process; its log says how.")
    # A caller who waits for the step alone still learns whether data, settings or the machine were at fault.
    kind = type(cause) if isinstance(cause, RLCoreError) else RLCoreError
    failure = kind(
        f"Micro-batch {window.micro_batches} (counted from 0) of this optimiser step failed with "
        f"{type(cause).__name__} ({cause}), so no step was made and the gradients are cleared. "
        "Mend the cause and queue the whole step again; the client is usable after this optim_step()."
    )
    failure.__cause__ = cause
    return failure


def _loss_and_metrics(returned: object) -> MicroBatchLoss:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise DataError(
            f"Found {type(returned).__name__} from the loss function, expected a scalar loss and a mapping of metrics. "
            "Return `loss, {}` where there is nothing to report."
        )
    return MicroBatchLoss(*returned)


def _check_scalars(result: MicroBatchLoss) -> None:
    loss = result.loss
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise DataError(f"Found {found} as loss, expected a scalar tensor. Reduce it in the loss function.")
    if not loss.requires_grad:
        raise DataError(
            "Found a loss without gradient. Compute it from the model that the loss function gets, "
            "with at least one trainable parameter and without no_grad() or detach()."
        )
    for name, value in result.metrics.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise DataError(f"Metric {name!r}: found shape {list(value.shape)}, expected one number. Reduce it.")


def _has_adapters(model: nn.Module) -> bool:
    return any(hasattr(module, "peft_config") for module in model.modules())


def _ignore(error: BaseException) -> None:
    """An evaluation changes nothing, so its failure touches no window."""
