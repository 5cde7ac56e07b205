"""On which device a process trains its replica."""

import torch

from rlcore.errors import ConfigError
from rlcore.models import choose_device
from rlcore.processes import launched_processes


def training_device(device: str | torch.device | None) -> torch.device:
    """The device that the launch gave this process; of a single process the named one.

    Args:
        device: as in the settings, where several processes may say no more than `cpu` or `cuda`, as each has a GPU of
            its own; or what this function returned. None takes a GPU where there is one.

    Raises:
        ConfigError: the device is not there, the processes were launched for another kind, or it is one GPU for all.
    """
    processes = launched_processes()
    own = processes.device
    if own is None:
        return choose_device(None if device is None else str(device))
    if device is None or device == own:
        return own
    chosen = choose_device(str(device))
    if chosen.type != own.type:
        raise ConfigError(
            f"Found device={str(device)!r}, but this process was launched for {own}. Leave the device out, or set "
            "ACCELERATE_USE_CPU=true to train on CPUs."
        )
    if chosen.type == "cuda" and chosen.index is not None:
        raise ConfigError(
            f"Found device={str(device)!r} for {processes.count} processes, expected cuda or none: each has a GPU of "
            "its own, which the launch chose. Leave the number out, or choose GPUs with CUDA_VISIBLE_DEVICES."
        )
    return own
