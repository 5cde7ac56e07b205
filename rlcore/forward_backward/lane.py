"""The one ordered lane through which everything reaches a model that is being trained."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward.accumulation import (
    Accumulation,
    LossFunction,
    MicroBatchLoss,
    Update,
    loss_and_metrics,
)
from rlcore.forward_backward.future import AsyncTrainingFuture, ForwardBackwardOutput, OptimStepOutput, StepOutput
from rlcore.forward_backward.memory import RowLimit, measure_in_parts
from rlcore.forward_backward.placing import training_device
from rlcore.forward_backward.sampling import Sample, sample_request
from rlcore.forward_backward.state import TrainingState, checked_name, folder_of
from rlcore.forward_backward.whole_step import LossOfPart, train_whole_step
from rlcore.forward_backward.worker import Worker
from rlcore.models import evaluation_mode, reference_of
from rlcore.processes import Processes, launched_processes
from rlcore.sampling import SamplingParams, is_whole

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")


class Lane:
    """Trains one model in one thread: work is done in the order in which it was queued, whoever queued it.

    Launched in several processes, each trains its replica on its own rows. An optimiser step uses the gradients of all:
    their sum where losses are divided by the counts of the whole step, the mean over all micro-batches where losses are
    means. Every process has to queue the same steps; one without rows queues no micro-batch for them.

    Several clients of one model take turns: a micro-batch is refused while another one's wait for their step.

    Work does not see autocast or another setting that belongs to the caller's thread; enter it inside the work. Dropout
    draws from torch's global generator: code that draws from it too while work is queued makes runs differ.

    Attributes:
        model: trained in place.
        reference_model: frozen, or None.
        device: where the model is.
        processes: those that train together.
    """

    def __init__(
        self,
        model: nn.Module,
        reference_model: nn.Module | None = None,
        device: str | torch.device | None = None,
        gradient_accumulation_steps: int = 1,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        checkpoint_dir: str | Path | None = None,
    ):
        _require_count(
            "gradient_accumulation_steps", gradient_accumulation_steps, "Pass the micro-batches of one step."
        )
        if reference_model is model:
            raise ConfigError(
                "Found the same object as model and reference_model; a reference must not move with the policy. "
                "Pass a copy, or leave it out where the model has LoRA adapters."
            )
        self.processes = launched_processes()
        place = self.processes.device if device is None else training_device(device)
        self.model = model if place is None else model.to(place)
        self.processes.copy_from_first(model)
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.reference_model = reference_model
        if reference_model is not None:
            reference_model.to(self.device).eval().requires_grad_(False)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self._accumulation = Accumulation(model, self.processes, gradient_accumulation_steps)
        level = logging.WARNING if self.processes.is_first else logging.DEBUG
        self._training_limit = RowLimit("a forward and backward pass", level)
        self._evaluation_limit = RowLimit("an evaluation")
        self._state = TrainingState(self._accumulation, self.device, checkpoint_dir)
        self._tokenizer = tokenizer
        self._worker = Worker(self.device)

    def backward(self, loss_fn: LossFunction) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue a forward and a backward pass; gradients add up until the next `optim_step`.

        Args:
            loss_fn: called with the model, gradients on. Returns a scalar loss, divided by the counts of the whole
                optimiser step, over all processes, and metrics to report. The loss is not divided again.

        Returns:
            future of the loss and the metrics. It raises DataError for a loss that is no scalar or has no gradient.
            After a failed micro-batch the rest of its window fails with that error, up to and including the next
            optim_step.
        """
        require_function("loss_fn", loss_fn)
        return self._queue_micro_batch(lambda model: loss_and_metrics(loss_fn(model)), is_mean=False)

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

    def evaluate_in_parts(
        self,
        rows: Sequence[RowT],
        measure: Callable[[nn.Module, list[RowT]], ResultT],
        *,
        part_size: int | None = None,
        use_reference: bool = False,
    ) -> list[ResultT]:
        """Evaluate rows part by part and wait for the results. Not collective: the rows are this process's own.

        Where the device runs out of memory a part is halved, and no later one is larger; `train_step` has a limit of
        its own.

        Args:
            rows: anything.
            measure: called with the model and consecutive rows, as the function of `evaluate` is.
            part_size: rows of one call at most; None for all of them.
            use_reference: as in `evaluate`.

        Returns:
            what measure returned, in the order of the rows.

        Raises:
            ConfigError: part_size is below 1, or see `evaluate`.
            DeviceMemoryError: there is too little memory for one row.
        """
        if part_size is not None:
            _require_count("part_size", part_size, "Pass rows of one call, or None for all of them.")
        size = len(rows) if part_size is None else part_size
        work = partial(measure_in_parts, rows=rows, measure=measure, part_size=size, limit=self._evaluation_limit)
        return self.evaluate(work, use_reference=use_reference).result()

    def across_processes(self, fn: Callable[[Processes], ResultT]) -> AsyncTrainingFuture[ResultT]:
        """Queue fn(processes), so that exchanges between processes happen in the queue's order in all of them."""
        return self._worker.submit(partial(fn, self.processes), _ignore)

    def train_step(
        self,
        rows: Sequence[int],
        loss_of: LossOfPart,
        optimizer: torch.optim.Optimizer,
        *,
        micro_batch_size: int,
        max_grad_norm: float | None,
    ) -> StepOutput:
        """Make one optimiser step over the rows and wait for it: each process takes its share, gradients are added.

        Where the device runs out of memory the micro-batches are halved and the step is done again; with dropout it
        draws other masks then. The client keeps to the smaller size.

        Args:
            rows: numbers of the rows, the same in all processes, at least one.
            loss_of: from the numbers of some of these rows to their loss function. The loss is divided by the counts
                of all rows, so losses, gradients and metrics of micro-batches and processes add up.
            optimizer: as in `optim_step`.
            micro_batch_size: rows of one backward pass, of all processes together.
            max_grad_norm: as in `optim_step`.

        Raises:
            DataError: there are no rows, or a loss is no scalar or has no gradient.
            ConfigError: micro_batch_size is below 1, max_grad_norm is not above 0, or micro-batches wait for a step.
            DeviceMemoryError: there is too little memory for one row.
            Exception: what loss_of or its function raised; RLCoreError where that was in another process.
        """
        if not len(rows):
            raise DataError("Found no rows, expected at least one. Make no step where there is nothing to learn from.")
        _require_count("micro_batch_size", micro_batch_size, "Pass rows of one backward pass.")
        update = Update(optimizer, max_grad_norm=max_grad_norm)
        work = partial(self._run_whole_step, rows, loss_of, update, micro_batch_size)
        return self._worker.submit(work, lambda error: self._accumulation.clear(optimizer)).result()

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
        return self._queue_step(Update(optimizer, scheduler, max_grad_norm), self.gradient_accumulation_steps)

    def flush(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float | None = 1.0,
    ) -> AsyncTrainingFuture[OptimStepOutput]:
        """Queue the step of a last window that stayed short, along the mean of the micro-batches it has."""
        return self._queue_step(Update(optimizer, scheduler, max_grad_norm), 1)

    def save_state(self, name: str) -> dict[str, str]:
        """Write all that training needs to go on bit for bit into `<checkpoint_dir>/<name>/`, and wait for it.

        Work that was queued before is done first. The folder holds the model, the optimizer and the scheduler of the
        last `optim_step` (nothing of them before the first), the number of steps, torch's random numbers, and gradients
        and counts of an open window. It takes the place of an older one of that name once it is whole. Of several
        processes the first writes; all get the answer.

        Args:
            name: names the folder.

        Returns:
            `path` of the folder, `model_path`, `optimizer_path` and `state_path` of files in it.

        Raises:
            ConfigError: the name is no plain one.
            CheckpointError: a weight is NaN or infinite, or the open window has failed. Nothing is written.
            OSError: the disk is full or fails. An older state of that name is untouched.
        """
        return self._worker.submit(partial(self._state.save, checked_name(name)), _ignore).result()

    def load_state(self, path: str | Path | Mapping[str, str]) -> None:
        """Go on from a state that `save_state` wrote, and wait until it is there. Random numbers go on from it too.

        Optimizer and scheduler of the last `optim_step` get their state at once, in a new client those of the first
        one, whose learning rates the state brings along.

        Args:
            path: what `save_state` returned, or the folder.

        Raises:
            ConfigError: it is neither.
            CheckpointError: the folder is missing, incomplete or damaged, or belongs to another model, optimizer,
                scheduler or number of processes. Nothing is changed. `optim_step` raises it where the first optimizer
                it gets does not fit.
        """
        self._worker.submit(partial(self._state.load, folder_of(path)), _ignore).result()

    def sample(
        self,
        prompt: Sequence[int] | Tensor,
        max_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int = -1,
        top_p: float = 1.0,
        stop: Sequence[int | str] | None = None,
        seed: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Sample:
        """Sample a continuation of one prompt from the model as the work queued before leaves it, and wait for it.

        Args:
            prompt: token ids, a list or a tensor [L] or [1, L].
            max_tokens: most tokens to sample.
            temperature: the logits are divided by it; 0 takes the most likely token.
            top_k: sample among the k most likely tokens; -1 or 0 is off.
            top_p: sample from the smallest set of tokens that reaches this probability; 1 is off.
            stop: token ids and texts, each of which ends the sample. A text is looked for in what was generated, across
                token borders. None: max_tokens alone ends it.
            seed: makes the sample repeatable; None draws one from torch's global generator.
            tokenizer: decodes for stop texts; None takes the client's.

        Returns:
            `tokens`, which include the stop token or those that complete the stop text, `logprobs` of each of them in
            nats, and the `prompt`, all as lists.

        Raises:
            ConfigError: a setting is out of range, stop texts come without a tokenizer, or the model is no causal
                language model.
            DataError: the prompt is no row of the model's token ids, or it and max_tokens exceed the context.
        """
        params = SamplingParams(max_tokens, temperature, 0 if top_k == -1 else top_k, top_p)
        request = sample_request(prompt, params, stop, seed, tokenizer or self._tokenizer)
        return self.evaluate(request.answer).result()

    def shutdown(self) -> None:
        """Finish the queued work, end the thread and log the errors that nobody asked for. Idempotent."""
        self._close(cancel_queued=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(cancel_queued=error is not None)

    def _close(self, *, cancel_queued: bool) -> None:
        self._worker.shutdown(cancel_queued=cancel_queued)
        self._accumulation.release()

    def _queue_micro_batch(
        self, forward: Callable[[nn.Module], MicroBatchLoss], *, is_mean: bool
    ) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue one micro-batch. A mean is divided by gradient_accumulation_steps, a loss over counts is not."""
        return self._worker.submit(partial(self._accumulation.add, forward, is_mean=is_mean), self._accumulation.fail)

    def _queue_step(self, update: Update, least_means: int) -> AsyncTrainingFuture[OptimStepOutput]:
        step = partial(self._run_step, update, least_means)
        return self._worker.submit(step, lambda error: self._accumulation.clear(update.optimizer))

    def _run_whole_step(
        self, rows: Sequence[int], loss_of: LossOfPart, update: Update, micro_batch_size: int
    ) -> StepOutput:
        self._state.meet(update)
        return train_whole_step(self._accumulation, rows, loss_of, update, micro_batch_size, self._training_limit)

    def _run_step(self, update: Update, least_means: int) -> OptimStepOutput:
        self._state.meet(update)
        return self._accumulation.step(self._accumulation.of_all_processes(), update, least_means)

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


def require_function(name: str, value: object) -> None:
    """Let pass what can be called.

    Raises:
        ConfigError: it cannot.
    """
    if not callable(value):
        raise ConfigError(f"Found {name}={value!r}, expected a function. See the docstring for what it is called with.")


def _require_count(name: str, value: object, advice: str) -> None:
    if not (is_whole(value) and cast(int, value) >= 1):
        raise ConfigError(f"Found {name}={value!r}, expected at least 1, as a whole number. {advice}")


def _has_adapters(model: nn.Module) -> bool:
    return any(hasattr(module, "peft_config") for module in model.modules())


def _ignore(error: BaseException) -> None:
    """An evaluation changes nothing, so its failure touches no window."""
