"""The state of a training that is under way, saved and loaded exactly: afterwards it goes on bit for bit."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.checkpoint import Checkpoint, load_checkpoint, write_checkpoint
from rlcore.errors import CheckpointError, ConfigError
from rlcore.forward_backward.accumulation import Accumulation, Update, Window
from rlcore.run_folder import pack_optimizer, unpack_optimizer

KIND = "training state"
DEFAULT_FOLDER = Path("checkpoints")

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_LONGEST_NAME = 200  # file systems take 255 bytes, of which a draft's name needs some more
_OF_A_WINDOW = ("micro_batches", "holds_means", "holds_sums", "non_finite")


class TrainingState:
    """Saves and loads a model, its optimizer and scheduler, the open window and the random numbers.

    All but the constructor is called in the lane's thread.

    Args:
        accumulation: holds the model and the open window.
        device: of the model.
        folder: where saved states lie, by name.
    """

    def __init__(self, accumulation: Accumulation, device: torch.device, folder: str | Path | None):
        self._accumulation, self._device = accumulation, device
        self._folder = DEFAULT_FOLDER if folder is None else Path(folder)
        self._update: Update | None = None
        self._waiting: _SavedUpdate | None = None

    def meet(self, update: Update) -> None:
        """Note what steps are made with; the first after `load` in a new lane gets the state that was saved.

        Raises:
            CheckpointError: the saved state does not fit.
        """
        if self._waiting is not None:
            self._waiting.give_to(update)
            self._waiting = None
        self._update = update

    def save(self, name: str) -> dict[str, str]:
        """See Lane.save_state (collective)."""
        accumulation = self._accumulation
        parts = accumulation.processes.gather(_part_of_this_process(accumulation, self._device))
        return accumulation.processes.on_first(lambda: self._write(self._folder / name, parts))

    def load(self, path: Path) -> None:
        """See Lane.load_state."""
        checkpoint = load_checkpoint(path)
        accumulation = self._accumulation
        rank = accumulation.processes.rank
        _check(path, checkpoint, accumulation)
        saved = _SavedUpdate(path, checkpoint.tensors["optimizer"], checkpoint.state["update"])
        if self._update is not None:
            saved.give_to(self._update)
        self._waiting = None if self._update is not None else saved
        _put_weights(accumulation.model, checkpoint.tensors["model"])
        _put_gradients(accumulation.model, checkpoint.tensors["gradients"], rank)
        _put_random_state(checkpoint.tensors["random"], rank, self._device)
        accumulation.window = Window(**checkpoint.state["windows"][rank])
        accumulation.steps = checkpoint.step

    def _write(self, destination: Path, parts: Sequence["_Part"]) -> dict[str, str]:
        if any(part.failed for part in parts):
            raise CheckpointError(
                "Found a failed micro-batch in the open optimiser step, expected one that can go on. "
                "Call optim_step(), which raises its error and clears it, and save then."
            )
        optimizer_tensors, update = self._packed_update()
        accumulation = self._accumulation
        tensors = {
            "model": _tensors_of(accumulation.model),
            "optimizer": optimizer_tensors,
            "gradients": _by_rank([part.gradients for part in parts]),
            "random": _by_rank([part.random for part in parts]),
        }
        state = {
            "kind": KIND,
            "gradient_accumulation_steps": accumulation.means_per_step,
            "windows": [part.window for part in parts],
            "update": update,
        }
        write_checkpoint(destination, accumulation.steps, tensors, state)
        return {
            "path": str(destination),
            "model_path": str(destination / "model.safetensors"),
            "optimizer_path": str(destination / "optimizer.safetensors"),
            "state_path": str(destination / "state.json"),
        }

    def _packed_update(self) -> tuple[Mapping[str, Tensor], dict[str, Any] | None]:
        """Tensors and JSON of optimizer and scheduler; None before the first step."""
        if self._waiting is not None:
            return self._waiting.tensors, self._waiting.state
        if self._update is None:
            return {}, None
        optimizer, scheduler = self._update.optimizer, self._update.scheduler
        tensors, state = pack_optimizer(optimizer)
        return tensors, {
            "classes": _classes(self._update),
            "optimizer": state,
            "scheduler": None if scheduler is None else scheduler.state_dict(),
        }


@dataclass(frozen=True)
class _Part:
    """What differs between processes."""

    window: dict[str, Any]
    gradients: dict[str, Tensor]
    random: dict[str, Tensor]
    failed: bool


@dataclass(frozen=True)
class _SavedUpdate:
    """State of an optimizer and a scheduler, and the folder that it comes from."""

    path: Path
    tensors: Mapping[str, Tensor]
    state: dict[str, Any] | None

    def give_to(self, update: Update) -> None:
        """Put the state into them, or raise and change neither."""
        if self.state is None:
            self._require_fresh(update)
            return
        found, expected = self.state["classes"], _classes(update)
        if found != expected:
            raise CheckpointError(
                f"{self.path}: found the state of {' and '.join(found)}, expected that of {' and '.join(expected)}. "
                "Pass the same kinds of optimizer and scheduler to optim_step()."
            )
        unpack_optimizer(update.optimizer, self.tensors, self.state["optimizer"])
        if update.scheduler is not None:
            update.scheduler.load_state_dict(_as_in(update.scheduler.state_dict(), self.state["scheduler"]))

    def _require_fresh(self, update: Update) -> None:
        if update.optimizer.state:
            raise CheckpointError(
                f"{self.path}: found a state from before the first optimiser step, expected an optimizer without "
                "moments to go with it. Pass a new one to a new client."
            )


def checked_name(name: str) -> str:
    """A name for a saved state, which is that of its folder.

    Raises:
        ConfigError: it would not be one folder below the others.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(
            f"Found {name!r} as the name of a state, expected letters, digits, _, - and single dots, "
            f"{_LONGEST_NAME} bytes at most. It names a folder; where that lies is the client's checkpoint_dir."
        )
    return name


def folder_of(saved: str | Path | Mapping[str, str]) -> Path:
    """The folder of a saved state, from its path or from what `save` returned.

    Raises:
        ConfigError: it is neither.
    """
    path = saved.get("path") if isinstance(saved, Mapping) else saved
    if not isinstance(path, str | Path):
        raise ConfigError(f"Found {saved!r} as a saved state, expected its folder. Pass what save_state() returned.")
    return Path(path)


def _part_of_this_process(accumulation: Accumulation, device: torch.device) -> _Part:
    window = accumulation.window
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in accumulation.model.named_parameters()
        if parameter.grad is not None
    }
    random = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(device)
    return _Part({key: getattr(window, key) for key in _OF_A_WINDOW}, gradients, random, window.error is not None)


def _by_rank(groups: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{rank}.{name}": tensor for rank, group in enumerate(groups) for name, tensor in group.items()}


def _check(path: Path, checkpoint: Checkpoint, accumulation: Accumulation) -> None:
    state, count = checkpoint.state, accumulation.processes.count
    if state.get("kind") != KIND:
        raise CheckpointError(f"{path}: found another kind of checkpoint, expected one that save_state() wrote.")
    if len(state["windows"]) != count:
        raise CheckpointError(
            f"{path}: found the state of {len(state['windows'])} processes, expected that of {count}. "
            "Launch as many as saved it."
        )
    steps = state["gradient_accumulation_steps"]
    if state["windows"][accumulation.processes.rank]["micro_batches"] and steps != accumulation.means_per_step:
        raise CheckpointError(
            f"{path}: found an open optimiser step with gradient_accumulation_steps={steps}, expected "
            f"{accumulation.means_per_step}. Make the client with {steps}."
        )
    own, saved = _tensors_of(accumulation.model), checkpoint.tensors["model"]
    different = [name for name in sorted({*own, *saved}) if _form(own.get(name)) != _form(saved.get(name))]
    if different:
        name = different[0]
        raise CheckpointError(
            f"{path}: {len(different)} weights differ in name, shape or precision, such as {name}: found "
            f"{_form(saved.get(name))}, expected {_form(own.get(name))}. Load it into the model it was saved from."
        )


def _form(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}


@torch.no_grad()
def _put_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    for name, tensor in _tensors_of(model).items():
        tensor.copy_(saved[name])


def _put_gradients(model: nn.Module, saved: Mapping[str, Tensor], rank: int) -> None:
    for name, parameter in model.named_parameters():
        gradient = saved.get(f"{rank}.{name}")
        parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _put_random_state(saved: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    torch.set_rng_state(saved[f"{rank}.cpu"])
    if f"{rank}.cuda" in saved and device.type == "cuda":
        torch.cuda.set_rng_state(saved[f"{rank}.cuda"], device)


def _classes(update: Update) -> list[str]:
    return [type(part).__name__ for part in (update.optimizer, update.scheduler) if part is not None]


def _as_in(own: Any, saved: Any) -> Any:
    """What JSON made of a scheduler's state, in the types of its own: JSON's keys are text, and it has no tuples."""
    if isinstance(own, Counter):
        return Counter({int(step): count for step, count in saved.items()})
    if isinstance(own, dict):
        return {key: _as_in(own.get(key), value) for key, value in saved.items()}
    if isinstance(own, list | tuple) and isinstance(saved, list) and len(own) == len(saved):
        return type(own)(map(_as_in, own, saved))
    return saved
