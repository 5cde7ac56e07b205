"""Reward models on disk, in two forms.

The folder form is an ordinary model folder of the body, with the adapters added to its weights, and the head, the
buffers and the config beside it. The file form is one safetensors file with everything: weights as they are, adapters
apart, kind, config and body config as JSON in the header, and the tokenizer's files as bytes.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.checkpoint import publish, read_tensors, sync, told_as_os_error, write_tensors
from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError
from rlcore.health import refuse_non_finite
from rlcore.models import load_tokenizer, seeded
from rlcore.reward.body import load_body
from rlcore.reward.model import HEAD, REWARD_CONFIG, RewardModel, read_head
from rlcore.reward.multi_objective import MultiObjectiveRewardModel
from rlcore.reward.pairwise import PairwiseRewardModel

KINDS: dict[str, Callable[[RewardModelConfig, PreTrainedModel], RewardModel]] = {
    "RewardModel": RewardModel,
    "PairwiseRewardModel": PairwiseRewardModel,
    "MultiObjectiveRewardModel": lambda config, body: MultiObjectiveRewardModel(
        config, config.num_labels, base_model=body
    ),
}
"""How each kind of reward model is built from its config and body. A folder that names no kind is a RewardModel."""

DESCRIPTION = "reward_model"
"""The entry of a file's header that describes its model."""

_TOKENIZER = "tokenizer/"
# Settings that say what the weights mean. Saved ones have to be those of the model that takes the weights.
_MEANING = ("num_labels", "pooling_strategy", "temperature")
_ADAPTERS = ("lora_rank", "lora_alpha")


@dataclass(frozen=True, eq=False)
class SavedRewardModel:
    """What a file or a folder holds.

    Attributes:
        path: where it lies.
        kind: a key of KINDS.
        config: the model's.
        weights: weights and buffers by name, on the CPU.
        tokenizer: of the model.
    """

    path: Path
    kind: str
    config: RewardModelConfig
    weights: dict[str, Tensor]
    tokenizer: PreTrainedTokenizerBase


def is_reward_model(path: str | Path) -> bool:
    """Whether the path is a file, or a folder that `save_reward_model` wrote."""
    return Path(path).is_file() or (Path(path) / REWARD_CONFIG).is_file()


def save_reward_model(model: RewardModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `load_reward_model` reads, in one step. Adapters are added to the weights.

    Raises:
        CheckpointError: a weight holds NaN or infinity. A folder that was there is untouched.
        OSError: the disk is full or fails. A folder that was there is untouched.
    """
    plain = model.merged()
    refuse_non_finite(str(folder), _weights(plain))
    head = {"weight": plain.head.weight, **dict(plain.named_buffers(recurse=False))}
    config = {"kind": _kind_of(plain), **plain.config.model_dump(mode="json")}
    with publish(folder) as draft:
        plain.body.save_pretrained(draft)
        write_tensors(draft / HEAD, head)
        (draft / REWARD_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(draft)


def load_reward_model(path: str | Path) -> tuple[RewardModel, PreTrainedTokenizerBase]:
    """The reward model of a folder or file, of the kind that was saved, on the CPU and in evaluation mode.

    Returns:
        the model and its tokenizer.

    Raises:
        CheckpointError: no reward model is there, a file is damaged, the head is missing, or its shape is not the one
            of the config.
    """
    path = Path(path)
    if path.is_file():
        saved, body_config = _read_file(path)
        model = _built(path, saved.kind, saved.config, _empty_body(path, body_config))
        load_weights(model, saved)
        return model.eval(), saved.tokenizer
    kind, config = _read_config(path)
    head = read_head(path)
    model = _built(path, kind, config, load_body(path))
    try:
        model.load_head(head.pop("weight"))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    _copy(dict(model.named_buffers(recurse=False)), head, path / HEAD)
    return model.eval(), load_tokenizer(path)


def save_reward_file(model: RewardModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write one file that `load_reward_model` reads, in one step.

    Raises:
        CheckpointError: a weight holds NaN or infinity, or the path is a folder. A file that was there is untouched.
        OSError: the disk is full or fails. A file that was there is untouched.
    """
    weights = _weights(model)
    refuse_non_finite(str(path), weights)
    description = {
        "kind": _kind_of(model),
        "config": model.config.model_dump(mode="json"),
        "body": json.loads(model.body.config.to_json_string(use_diff=False)),
    }
    with _published_file(path) as draft:
        write_tensors(draft, {**weights, **_tokenizer_bytes(tokenizer)}, {DESCRIPTION: json.dumps(description)})


def read_saved(path: Path) -> SavedRewardModel:
    """What a file or folder holds, for `load_weights`.

    Raises:
        CheckpointError: see load_reward_model.
    """
    if path.is_dir():
        model, tokenizer = load_reward_model(path)
        return SavedRewardModel(path, _kind_of(model), model.config, _weights(model), tokenizer)
    return _read_file(path)[0]


def load_weights(model: RewardModel, saved: SavedRewardModel) -> None:
    """Give a model the saved weights and buffers, in place. Nothing changes unless all of them fit.

    Where they have no adapters and the model does, its base takes them and its adapters become no change again.

    Raises:
        CheckpointError: the saved model is of another kind, architecture or shape, or its settings give the weights
            another meaning.
    """
    if _kind_of(model) != saved.kind:
        raise CheckpointError(f"{saved.path}: found a {saved.kind}, expected a {_kind_of(model)}. Load another one.")
    into_base = model.config.use_lora and not saved.config.use_lora
    for name in _MEANING if into_base else (*_MEANING, "use_lora", *(_ADAPTERS if model.config.use_lora else ())):
        found, expected = getattr(saved.config, name), getattr(model.config, name)
        if found != expected:
            raise CheckpointError(
                f"{saved.path}: found a model with {name}={found!r}, expected {name}={expected!r}. "
                "Build the model with the saved config, or read it with load_reward_model()."
            )
    _copy(_base_weights(model) if into_base else _weights(model), saved.weights, saved.path)
    if into_base:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".lora_B." in name:
                    weight.zero_()


@contextlib.contextmanager
def _published_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of the one at `path` once it is on disk."""
    path = path.resolve()
    if path.is_dir():
        raise CheckpointError(f"{path}: found a folder, expected a file or nothing. Move it away.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with told_as_os_error(path):
            yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _weights(model: RewardModel) -> dict[str, Tensor]:
    """Weights and buffers by name, each once: of tied weights, the first name."""
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first_names}


def _base_weights(model: RewardModel) -> dict[str, Tensor]:
    """Weights of a model with adapters, without these, under the names that they have in a model without."""
    return {
        name.replace("body.base_model.model.", "body.").replace(".base_layer.", "."): weight
        for name, weight in _weights(model).items()
        if ".lora_" not in name
    }


def _copy(targets: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    missing, unknown = sorted(targets.keys() - found.keys()), sorted(found.keys() - targets.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{path}: found no {missing[:3]} and found {unknown[:3]} beside what the model has, "
            f"{len(missing)} and {len(unknown)} in all. The file belongs to a model of another architecture."
        )
    for name, target in targets.items():
        if found[name].shape != target.shape:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(found[name].shape)}, expected {tuple(target.shape)}. "
                "The file belongs to a model of another shape."
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(found[name])


def _kind_of(model: RewardModel) -> str:
    kind = type(model).__name__
    if kind not in KINDS:
        raise ConfigError(f"{kind}: found a kind of reward model with no form on disk, expected {', '.join(KINDS)}.")
    return kind


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"found kind={kind!r}, expected one of {', '.join(KINDS)}")
    return kind


def _built(path: Path, kind: str, config: RewardModelConfig, body: PreTrainedModel) -> RewardModel:
    try:
        return KINDS[kind](config, body)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_config(folder: Path) -> tuple[str, RewardModelConfig]:
    path = folder / REWARD_CONFIG
    try:
        settings = dict(json.loads(path.read_bytes()))
        kind = _known_kind(settings.pop("kind", "RewardModel"))
        return kind, RewardModelConfig.model_validate(settings)
    except (FileNotFoundError, NotADirectoryError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {error}. Expected the folder or file of a reward model; train or restore it."
        ) from error


def _read_file(path: Path) -> tuple[SavedRewardModel, dict[str, Any]]:
    """What a file holds, and the config of the body, as transformers writes it. No code in it can run."""
    _refuse_pickle(path)
    tensors = read_tensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {})[DESCRIPTION])
        kind, body_config = _known_kind(description["kind"]), dict(description["body"])
        config = RewardModelConfig.model_validate(description["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: its header describes no reward model ({error!r}). Expected a file that save_model() wrote."
        ) from error
    files = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_TOKENIZER)}
    return SavedRewardModel(path, kind, config, tensors, _tokenizer_of(path, files)), body_config


def _empty_body(path: Path, settings: dict[str, Any]) -> PreTrainedModel:
    """A body of the architecture that the settings describe; its weights are still to come."""
    try:
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        with seeded(0):
            body: PreTrainedModel = AutoModel.from_config(config, dtype=torch.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: transformers builds no body of this architecture ({error}). "
            "Build the model yourself and load the weights into it."
        ) from error
    return body


def _tokenizer_bytes(tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
        return {
            f"{_TOKENIZER}{name}": torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8))
            for name, path in sorted(files.items())
        }


def _tokenizer_of(path: Path, files: Mapping[str, Tensor]) -> PreTrainedTokenizerBase:
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for entry, content in files.items():
            target = (folder / entry.removeprefix(_TOKENIZER)).resolve()
            if not target.is_relative_to(folder):
                raise CheckpointError(f"{path}: found the tokenizer file {entry!r}, which leaves its folder.")
            target.parent.mkdir(parents=True, exist_ok=True)
            content.numpy().tofile(target)
        try:
            return load_tokenizer(folder)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error


def _refuse_pickle(path: Path) -> None:
    """Say how to convert a file that torch.save wrote, before safetensors says that its header is damaged."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}. Expected a file that save_model() wrote.") from error
    if start in (b"PK", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6))):
        raise CheckpointError(
            f"{path}: found a file that torch.save() wrote, expected safetensors. A pickle can run code, so it is not "
            "read. If you trust it, convert it: read it with torch.load and weights_only=True, give that to "
            "load_state_dict() of the model, and call save_model() again."
        )
