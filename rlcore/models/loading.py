"""Model folders: reading, writing, where the weights go, and the seed of those that are random."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import peft
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import CheckpointError, ConfigError
from rlcore.models.causal_lm import CausalLM
from rlcore.models.checks import require_causal_lm, require_finite

ADAPTER_FOLDER = "adapter"
"""Where the folder of a model that was trained with adapters holds them unmerged."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global random numbers of this seed inside, on every device; the caller's own stream goes on afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def choose_device(name: str | None) -> torch.device:
    """The named device; None takes a GPU where there is one.

    Raises:
        ConfigError: the name is unknown, it asks for a GPU that is not there, or it is `meta`, where nothing is
            computed.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: not a device. Use cpu, cuda, cuda:<number> or leave it out.") from error
    if device.type == "meta":
        raise ConfigError(f"device={name!r}: nothing is computed there. Use cpu, cuda, cuda:<number> or leave it out.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"device={name!r}: found {count} CUDA devices. Use cpu, or leave the device out.")
    return device


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Tokenizer of a folder or hub name. One without a padding token pads with its end token.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no tokenizer.
    """
    _check_folder(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _unresolved(name, "tokenizer", error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_causal_lm(
    name_or_model: str | Path | CausalLM,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> CausalLM:
    """Causal language model of a folder or hub name, in evaluation mode. Code from the model's repository is never run.

    An object is moved to the device and otherwise left as it is.

    Args:
        name_or_model: folder, hub name or model.
        device: where to put it; None leaves it where it is, which is the CPU after loading.
        dtype: precision of the weights.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no causal language model; an object is none or has
            no values; a weight is not finite.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """
    if not isinstance(name_or_model, str | Path):
        require_causal_lm(name_or_model)
        return _placed(name_or_model, device)
    folder = _check_folder(name_or_model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"Found no config.json in {folder}. Expected a model folder as `save_pretrained` writes it.")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name_or_model, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except SafetensorError as error:
        raise CheckpointError(f"The weights in {folder} are damaged: {error}. Restore or train them again.") from error
    except (OSError, ValueError) as error:
        raise _unresolved(name_or_model, "causal language model", error) from error
    model: PreTrainedModel = loaded[0]
    lost = sorted({*loaded[1]["missing_keys"], *(key[0] for key in loaded[1]["mismatched_keys"])})
    if lost:
        raise CheckpointError(
            f"{name_or_model}: {len(lost)} weights are missing or of another shape, such as {lost[0]}; they would be "
            "random. Expected a complete causal language model. Restore the folder, or name another one."
        )
    nn.Module.eval(model)
    return _placed(model, device)


def save_causal_lm(model: CausalLM, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Write an ordinary model folder: config, safetensors, tokenizer.

    Adapters are merged into a copy of the model, and lie as they are in ADAPTER_FOLDER below it.
    """
    if isinstance(model, peft.PeftModel):
        # Embeddings have no adapters; by default peft asks the hub whether they were resized.
        model.save_pretrained(str(Path(folder) / ADAPTER_FOLDER), save_embedding_layers=False)
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(folder)


def _placed(model: CausalLM, device: torch.device | str | None) -> CausalLM:
    """The model on the device, its weights checked there, where it is fastest."""
    placed = model if device is None else nn.Module.to(model, device)
    require_finite(placed)
    return placed


def _check_folder(name: str | Path) -> Path:
    folder = Path(name)
    # A hub name has at most one slash, so anything else that is no folder is a mistake and not worth a download.
    is_path = isinstance(name, Path) or folder.is_absolute() or str(name).startswith(".") or len(folder.parts) > 2
    if is_path and not folder.is_dir():
        raise ConfigError(
            f"Found no folder {str(name)!r}. Expected a model folder or a hub name, `name` or `owner/name`."
        )
    return folder


def _unresolved(name: str | Path, what: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0]
    return ConfigError(f"Found no {what} at {str(name)!r}: {reason} Expected a model folder or a hub name that exists.")
