"""Where a run keeps its checkpoints, and how it knows that they are its own."""

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.errors import CheckpointError


@contextlib.contextmanager
def checkpoint_folder(resume_dir: Path | None, output_dir: Path) -> Iterator[Path]:
    """The folder for a run's checkpoints: resume_dir, which stays, else one beside output_dir that goes at the end.

    Without a resume_dir nothing can be resumed, so nothing is left that a later run could take for its own.
    """
    if resume_dir is not None:
        yield Path(resume_dir)
        return
    output_dir = Path(output_dir)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent) as folder:
        yield Path(folder)


def require_same_run(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Let the checkpoint of this very run pass.

    Args:
        path: the checkpoint.
        found: identity that it holds: settings, hashes of data and weights; plain JSON, mappings may be nested.
        expected: identity of this run.

    Raises:
        CheckpointError: they differ. Names what differs.
    """
    found, expected = _flat(found), _flat(expected)
    different = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    if different:
        listed = "; ".join(f"{name}: found {found.get(name)!r}, expected {expected.get(name)!r}" for name in different)
        raise CheckpointError(
            f"{path}: found a run with other settings or data, expected this one's ({listed}). "
            "Empty the folder to start anew, or resume with the former ones."
        )


def rows_sha256(rows: Iterable[Any]) -> str:
    """Hash of rows of data in their order. What JSON does not know counts by its text."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def weights_sha256(named_weights: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of weights: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, weight in named_weights:
        digest.update(f"{name} {list(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """What training can change: weights that take gradient, and buffers that are part of the model's state.

    Frozen weights, those under adapters above all, are as they were loaded; `weights_sha256` vouches for them.
    """
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def put_weights(path: Path, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put back what `trained_weights` took out of such a model.

    Args:
        path: the checkpoint.
        model: takes the weights.
        weights: by name.

    Raises:
        CheckpointError: a weight is missing, unknown or of another shape. Nothing is left at random.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in trained_weights(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    different = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    if different:
        listed = "; ".join(f"{name}: found {found.get(name)}, expected {expected.get(name)}" for name in different[:3])
        raise CheckpointError(
            f"{path}: {len(different)} weights do not fit the model ({listed}). "
            "Resume with the settings and the model that the run began with."
        )
    model.load_state_dict(weights, strict=False)


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with names such as config.batch_size."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
