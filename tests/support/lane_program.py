"""Queued training for tests in one process or several: `python -m tests.support.lane_program <folder> <part>...`.

Each part returns plain JSON; the process prints those it was asked for, by name.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rlcore.errors import DataError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.accumulation import MicroBatchLoss
from rlcore.processes import launched_processes
from rlcore.run_folder import weights_sha256
from tests.support.lane_models import OneNumber, RaggedRows, sgd
from tests.support.tiny import tiny_gpt2, tiny_llama

# In the middle of the fourth of six steps of two micro-batches each.
SAVED_AFTER = 7


def train_steps(folder: str) -> dict[str, Any]:
    """Steps over ragged rows: an odd number of rows, all of them, fewer than processes, micro-batches of odd size."""
    rows = RaggedRows(9)
    told: dict[str, Any] = {"outputs": []}
    # replicas start apart
    with AsyncTrainingClient(tiny_llama(seed=launched_processes().rank).train()) as client:
        optimizer = torch.optim.SGD(client.model.parameters(), lr=0.5, momentum=0.9)
        for step, size in (([4, 0, 7, 1, 3], 2), (list(range(9)), 4), ([6], 8), ([8, 2, 5], 3)):
            output = client.train_step(step, rows.loss_of(step), optimizer, micro_batch_size=size, max_grad_norm=1.0)
            told["outputs"].append([output.loss, output.grad_norm, *output.metrics.values(), output.step])
        told["weights"] = [weight.flatten().tolist() for weight in client.model.parameters()]
    return told


def windows(folder: str) -> dict[str, Any]:
    """Windows of two processes, of which one may have no micro-batch, one that is not finite, or one that fails."""
    first = launched_processes().is_first
    with AsyncTrainingClient(OneNumber(), gradient_accumulation_steps=2) as client:

        def sums(*slopes: float) -> None:
            for slope in slopes:
                client.backward(partial(lambda model, slope: (slope * model.weight.sum(), {}), slope=slope))

        def means(*slopes: float) -> None:
            for slope in slopes:
                loss = partial(lambda model, slope: MicroBatchLoss(slope * model.weight.sum(), {}), slope=slope)
                client._queue_micro_batch(loss, is_mean=True)

        def step(how: Callable[..., Any] = client.optim_step) -> Any:
            future = how(sgd(client), max_grad_norm=None)
            error = future.exception()
            if error is not None:
                return [type(error).__name__, str(error)]
            metrics = future.result().metrics
            return sorted({"skipped", "non_finite"} & metrics.keys()) or future.result().grad_norm

        told = {}
        sums(*((1.0, 2.0) if first else (4.0,)))
        told["sums"] = step()
        sums(*((3.0,) if first else ()))
        told["sums of one"] = step()
        means(*((1.0, 2.0) if first else (4.0, 5.0)))
        told["means"] = step()
        means(1.0 if first else 3.0)
        told["half a window"] = step()
        told["flushed"] = step(client.flush)
        means(*((1.0, 2.0) if first else ()))
        told["means of one"] = step()
        sums(float("nan") if first else 1.0)
        told["non-finite"] = step()
        sums(1.0) if first else client.backward(lambda model: {}["missing"])
        told["failed"] = step()
        told["weight"] = client.model.weight.item()
    return told


def out_of_memory(folder: str) -> dict[str, Any]:
    """The second process runs out of memory above some number of rows, then for one, then fails otherwise."""
    first = launched_processes().is_first
    sizes: list[int] = []

    def loss_of(capacity: int) -> Callable[[list[int]], Any]:
        def loss(part: list[int], model: OneNumber) -> Any:
            sizes.append(len(part))
            if len(part) > capacity:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return sum(part) * model.weight.sum(), {}

        return lambda part: partial(loss, part)

    def fail(part: list[int]) -> Any:
        raise DataError("row 7 has no tokens")

    with AsyncTrainingClient(OneNumber()) as client:

        def step(loss_of: Callable[[list[int]], Any], rows: int = 8) -> Any:
            try:
                output = client.train_step(range(rows), loss_of, sgd(client), micro_batch_size=8, max_grad_norm=None)
            except RuntimeError as error:
                return [type(error).__name__, str(error)]
            except DataError as error:
                return ["DataError", str(error)]
            return output.grad_norm

        told = {"halved": step(loss_of(9 if first else 2)), "sizes": list(sizes)}
        told["too small"] = step(loss_of(9 if first else 0))
        told["failed"] = step(loss_of(9) if first else fail)
        told["usable"] = step(loss_of(9), rows=3)
    return told


def _training(folder: str, seed: int, start: Callable[[ForwardBackwardPipeline], int]) -> dict[str, Any]:
    """Six steps with dropout, moments and a schedule; `start` returns the micro-batches that were done before."""
    rank = launched_processes().rank
    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randint(4, 48, (2, 7), generator=generator) for _ in range(12)]
    model = tiny_gpt2(seed).train()
    told: dict[str, Any] = {"steps": []}
    torch.manual_seed(99 + rank)
    with ForwardBackwardPipeline(model, gradient_accumulation_steps=2, checkpoint_dir=folder) as pipeline:
        done = start(pipeline)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        for number in range(done, len(batches)):
            told["steps"].append(pipeline.forward_backward(batches[number]).result().loss)
            if number == SAVED_AFTER - 1:
                pipeline.save_state("state")
            if number % 2:
                step = pipeline.optim_step(optimizer, scheduler).result()
                told["steps"].append([step.step, step.learning_rate, step.grad_norm])
        told["sample"] = pipeline.sample([5, 6, 7], 8)
    told["draw"] = torch.rand(1).item()
    told["weights"] = weights_sha256(model.named_parameters())
    return told


def straight(folder: str) -> dict[str, Any]:
    """All six steps; the state is saved on the way."""
    return _training(folder, 0, lambda pipeline: 0)


def resumed(folder: str) -> dict[str, Any]:
    """What is left after the saved state, with a model of other weights and other random numbers to begin with."""

    def load(pipeline: ForwardBackwardPipeline) -> int:
        torch.rand(3)
        pipeline.load_state(f"{folder}/state")
        return SAVED_AFTER

    return _training(folder, 1, load)


PARTS = {part.__name__: part for part in (train_steps, windows, out_of_memory, straight, resumed)}

if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: PARTS[name](sys.argv[1]) for name in sys.argv[2:]}))
