"""Tensors in safetensors files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore.errors import CheckpointError


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Write one safetensors file, the metadata in its header. Of tied tensors only the first is written.

    Returns:
        For each name that was left out, the name of the tensor it is one with.
    """
    kept: dict[str, Tensor] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in first_name:
            aliases[name] = first_name[place]
            continue
        first_name[place] = name
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses two tensors that share a storage
        copy = tensor.detach().clone if storage in storages else tensor.detach().contiguous
        kept[name] = copy(memory_format=torch.contiguous_format)
        storages.add(storage)
    save_file(kept, path, metadata={"format": "pt", **(metadata or {})})
    return aliases


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU. No code in it can run.

    Raises:
        CheckpointError: the file is missing or no safetensors.
    """
    try:
        return load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(
            f"{path}: {error}, expected a safetensors file. Write the folder again; pickled weights are not read."
        ) from error
