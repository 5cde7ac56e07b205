"""One optimiser step over rows that all processes know, in micro-batches as large as memory allows."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from rlcore.errors import ConfigError
from rlcore.forward_backward.accumulation import Accumulation, LossFunction, MicroBatchLoss, Update, loss_and_metrics
from rlcore.forward_backward.future import StepOutput
from rlcore.forward_backward.memory import RowLimit, ran_out_of_memory

LossOfPart = Callable[[list[int]], LossFunction]
"""`loss_of(rows)`: the loss of some of the rows of a step, divided by the counts of the whole step."""


def train_whole_step(
    accumulation: Accumulation,
    rows: Sequence[int],
    loss_of: LossOfPart,
    update: Update,
    micro_batch_size: int,
    limit: RowLimit,
) -> StepOutput:
    """See Lane.train_step. Collective; called in the lane's thread."""
    if accumulation.window.micro_batches or accumulation.window.error is not None:
        raise ConfigError(
            "Found micro-batches that wait for their optimiser step. Call optim_step() before train_step()."
        )
    count = accumulation.processes.count
    own_rows = accumulation.processes.share(rows)
    size = limit.at_most(math.ceil(min(micro_batch_size, len(rows)) / count))
    _pass_over(accumulation, own_rows, loss_of, size)
    whole = accumulation.of_all_processes()
    while whole.out_of_memory and whole.error is None:
        accumulation.clear(update.optimizer)
        size = limit.halve(size)
        _pass_over(accumulation, own_rows, loss_of, size)
        whole = accumulation.of_all_processes()
    if accumulation.window.error is not None:
        raise accumulation.window.error
    output = accumulation.step(whole, update)
    skipped = "skipped" in output.metrics
    return StepOutput(whole.loss, whole.metrics, output.grad_norm, output.learning_rate, output.step, skipped)


def _pass_over(accumulation: Accumulation, rows: list[int], loss_of: LossOfPart, size: int) -> None:
    """Forward and backward passes of the rows. An error is noted in the window: other processes wait to hear of it."""
    try:
        for start in range(0, len(rows), size):
            accumulation.add(partial(_micro_batch, rows[start : start + size], loss_of), is_mean=False)
    except BaseException as error:  # noqa: BLE001 - raised when all processes know
        if ran_out_of_memory(error):
            accumulation.window.out_of_memory = True
        else:
            accumulation.fail(error)


def _micro_batch(rows: list[int], loss_of: LossOfPart, model: nn.Module) -> MicroBatchLoss:
    return loss_and_metrics(loss_of(rows)(model))
