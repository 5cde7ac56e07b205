"""Where a run keeps its checkpoints, and how it knows that they are its own."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.processes import launched_processes
from rlcore.results import StopTraining


@contextlib.contextmanager
def checkpoint_folder(resume_dir: Path | None, output_dir: Path) -> Iterator[Path]:
    """The folder for a run's checkpoints: resume_dir, which stays, else one beside output_dir that goes at the end.

    Without a resume_dir nothing can be resumed, so nothing is left that a later run could take for its own. Both places
    are tried out, so that a run does not find at its end that it cannot write.

    Raises:
        ConfigError: one of the two folders lies in the other, which would go when the model is published.
        CheckpointError: one cannot be made or written.
    """
    output_dir = Path(output_dir)
    _require_writable(output_dir.resolve().parent)
    if resume_dir is not None:
        _require_apart(output_dir, Path(resume_dir))
        _require_writable(Path(resume_dir))
        yield Path(resume_dir)
        return
    with tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent) as folder:
        yield Path(folder)


@contextlib.contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold a folder of checkpoints for one run. The kernel lets go of it when the process ends, however it does.

    Raises:
        CheckpointError: another run holds it, or it cannot be written.
    """
    _require_writable(folder)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{folder}: another run writes here, expected none. Wait for its end, or name another folder."
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def saved_when_stopped(folder: Path | None, save: Callable[[Path], object]) -> Iterator[None]:
    """Around a report between two steps: where its sink stops the run, save(folder) comes first.

    Of several processes the first alone hears of the stop, and none of them saves.
    """
    try:
        yield
    except StopTraining:
        if folder is not None and launched_processes().count == 1:
            save(folder)
        raise


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
    """Hash of rows of data in their order. Arrays count by their numbers, what else JSON does not know by its text.

    Raises:
        DataError: something in a row has another text in each process, such as a set, or none: keys of several types,
            a mapping inside itself. Names the row and the key.
    """
    digest = hashlib.sha256()
    for index, row in enumerate(rows):
        text = _json_of(row)
        if text is None:
            raise DataError(
                f"Row {index}, {_unstable_part(row)}, expected numbers, texts, lists and mappings with keys of one "
                "type: anything else differs from process to process, so that no resume would know the row again. "
                "Change or drop it."
            )
        digest.update(text.encode() + b"\n")
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


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state into tensors and JSON, exactly. `unpack_optimizer` is the inverse."""
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars = {str(index): _split(entries, f"state.{index}.", tensors) for index, entries in packed["state"].items()}
    groups = [_split(group, f"group.{index}.", tensors) for index, group in enumerate(packed["param_groups"])]
    return tensors, {"groups": groups, "scalars": scalars}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Put back what `pack_optimizer` took out of an optimizer over the same parameters.

    Raises:
        CheckpointError: the number of parameters of a group, or the shape of one, is another.
    """
    current = optimizer.state_dict()["param_groups"]
    found = [len(group["params"]) for group in state["groups"]]
    expected = [len(group["params"]) for group in current]
    if found != expected:
        raise CheckpointError(
            f"Optimizer state for {found} parameters a group, expected {expected}. "
            "Resume with the settings the run began with, or start anew."
        )
    groups = [
        {key: tuple(value) if isinstance(current[index].get(key), tuple) else value for key, value in group.items()}
        for index, group in enumerate(state["groups"])
    ]
    entries = {int(index): dict(scalars) for index, scalars in state["scalars"].items()}
    for name, tensor in tensors.items():
        kind, index, key = name.split(".", 2)
        (entries if kind == "state" else groups)[int(index)][key] = tensor.clone()
    _refuse_other_shapes(optimizer, entries)
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _require_apart(output_dir: Path, resume_dir: Path) -> None:
    output, resume = output_dir.resolve(), resume_dir.resolve()
    if output.is_relative_to(resume) or resume.is_relative_to(output):
        raise ConfigError(
            f"output_dir={str(output_dir)!r} and resume_dir={str(resume_dir)!r}: found one in the other, expected two "
            "folders apart, as the model replaces output_dir as a whole. Name another resume_dir."
        )


def _require_writable(folder: Path) -> None:
    """Make the folder, and a file in it that goes at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".writable-", dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error}), expected a folder. Name another one.") from error


def _refuse_other_shapes(optimizer: torch.optim.Optimizer, entries: Mapping[int, Mapping[str, Any]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in entries.items():
        for key, value in entry.items():
            # Optimizers keep a step count, which is a scalar, and moments, which have the parameter's shape.
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise CheckpointError(
                    f"Optimizer state {key} of parameter {index} has shape {tuple(value.shape)}, "
                    f"expected {tuple(parameters[index].shape)}. Resume with the model the run began with."
                )


def _split(entries: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Move the tensors of entries into `tensors` under the prefix; return the rest."""
    tensors |= {prefix + key: value.detach() for key, value in entries.items() if isinstance(value, Tensor)}
    return {key: value for key, value in entries.items() if not isinstance(value, Tensor)}


def _json_of(value: Any) -> str | None:
    """The value as JSON; None where it has none that is the same in each process."""
    try:
        return json.dumps(value, sort_keys=True, default=_stable)
    except (TypeError, ValueError, RecursionError):
        return None


def _stable(value: Any) -> Any:
    """What stands for a value that JSON does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    text = str(value)
    # The order of a set depends on the hash seed of a process, the address of an object on its memory.
    if isinstance(value, Set) or re.search(r" at 0x[0-9a-f]+", text):
        raise TypeError
    return text


def _unstable_part(row: Any) -> str:
    """The first key of a row whose value has no stable JSON, and what stands there."""
    for part in row if isinstance(row, list) else [row]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if _json_of(value) is None:
                return f"key {key!r}: found {value!r:.80}"
        if isinstance(part, Mapping) and _json_of(part) is None:
            return f"keys {list(part)!r:.80}: found several types"
    return f"found {row!r:.80}"


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with names such as config.batch_size."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
