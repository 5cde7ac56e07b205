"""Data parallelism: several processes, each with a replica of the model and a share of the rows."""

import os
from collections.abc import Iterable

import torch
from torch import nn

from rlcore.errors import ConfigError


class DataParallel:
    """Keeps the replicas of all processes that `accelerate launch` or `torchrun` started in step.

    Gradients are averaged once for each optimiser step, between the backward passes and the clipping. The model is not
    wrapped, so a loss function may call any of its methods.
    """

    def __init__(self) -> None:
        from accelerate import Accelerator

        self._accelerator = Accelerator()
        self.device: torch.device = self._accelerator.device
        if self._accelerator.mixed_precision != "no":
            raise ConfigError(
                f"Found mixed_precision={self._accelerator.mixed_precision!r} in the launch settings, expected 'no': "
                "training runs in the model's own dtype. Launch with --mixed_precision no."
            )

    @torch.no_grad()
    def copy_from_first(self, model: nn.Module) -> None:
        """Give the replica the weights and buffers of process 0."""
        from accelerate.utils import broadcast

        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(broadcast(tensor.detach().clone()))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over the processes; one that a process lacks counts as 0 there."""
        parameters = list(parameters)
        held = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        somewhere = (self._accelerator.reduce(held, "sum") > 0).tolist()
        trained = [parameter for parameter, found in zip(parameters, somewhere, strict=True) if found]
        for parameter in trained:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self._accelerator.reduce(own, "mean")

    def any(self, condition: bool) -> bool:
        """Whether the condition holds in any of the processes."""
        flag = torch.tensor(float(condition), device=self.device)
        return bool(self._accelerator.reduce(flag, "sum") > 0)


class SingleProcess:
    """The same with one process, where nothing is to be done; accelerate is not loaded."""

    device: torch.device | None = None

    def copy_from_first(self, model: nn.Module) -> None:
        """Nothing to copy."""

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing to average."""

    def any(self, condition: bool) -> bool:
        """The condition."""
        return condition


def launched_processes() -> DataParallel | SingleProcess:
    """The processes that this one was launched with."""
    return DataParallel() if _process_count() > 1 else SingleProcess()


def require_single_process(trainer: str) -> None:
    """Refuse several processes for a trainer that does not share its rows out among them.

    Each would learn from the same rows and write into the same folder of checkpoints.

    Args:
        trainer: how the error names the trainer.

    Raises:
        ConfigError: `accelerate launch` or `torchrun` started more than one process.
    """
    if _process_count() > 1:
        raise ConfigError(
            f"{trainer}: found WORLD_SIZE={_process_count()}, expected one process, as it does not share its rows out. "
            "Start it without accelerate launch or torchrun; AsyncTrainingClient trains with several processes."
        )


def _process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
