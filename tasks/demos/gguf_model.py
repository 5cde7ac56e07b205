"""An ordinary model folder from a GGUF file, which packs quantised weights, vocabulary and chat template together.

Training needs weights that are numbers of their own, so they are dequantised, exactly, to float32. Only Llamas are
converted, and only with a tokenizer that is known to cut texts as the file says.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError, DataError
from tasks.records.artifacts import read_json, write_json

ORIGIN = "converted_from.json"
"""File of the folder that says from which bytes it was made."""

CONVERSION = 1
"""Number of this conversion; a new one replaces the folders that an older one wrote."""


def converted(gguf: Path, folder: Path) -> Path:
    """The model folder of a GGUF file: as it is where it was made from these bytes, else written, whole or not at all.

    Args:
        gguf: the file.
        folder: of the model; takes the place of a folder that an earlier conversion wrote, and of no other.

    Raises:
        ConfigError: the package gguf is missing, the folder holds something else, or the file is no Llama whose
            tokenizer is known.
        DataError: the file is no whole GGUF file.
    """
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    origin = {"file": gguf.name, "sha256": digest, "conversion": CONVERSION}
    if (folder / ORIGIN).is_file() and read_json(folder / ORIGIN) == origin:
        return folder
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ORIGIN).is_file():
        raise ConfigError(f"{folder}: holds something that no conversion wrote. Name another folder.")
    if find_spec("gguf") is None:
        raise ConfigError("Reading a GGUF file needs the package gguf. Install it: pip install gguf==0.19.0.")
    _write(gguf, folder, origin)
    return folder


def _write(gguf: Path, folder: Path, origin: dict[str, Any]) -> None:
    from rlcore.checkpoint import publish
    from rlcore.models import save_causal_lm

    cutting = _pre_tokenizer(gguf)
    model, tokenizer = _dequantised(gguf), _tokenizer(gguf)
    tokenizer.backend_tokenizer.pre_tokenizer = cutting
    with publish(folder) as draft:
        save_causal_lm(model, tokenizer, draft)
        write_json(draft / ORIGIN, origin)


def _pre_tokenizer(gguf: Path) -> Any:
    """How a text is cut before its bytes are merged. The file only names it, and its loader does not read the name."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    known = {
        "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    }
    fields = _fields(gguf)
    found = {key: fields[key].contents() if key in fields else None for key in _NEEDED}
    architecture, *tokenizer = found.values()
    if architecture != "llama" or tokenizer[0] != "gpt2" or tokenizer[1] not in known:
        listed = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise ConfigError(
            f"{gguf}: found {listed}. Expected a llama with a gpt2 tokenizer that is cut by {', '.join(known)}."
        )
    return known[tokenizer[1]]


def _fields(gguf: Path) -> Any:
    """What the file says of itself, by key. The reader looks up every tensor, so a file that was cut off is noticed."""
    from gguf import GGUFReader

    try:
        return GGUFReader(gguf).fields
    except (ValueError, LookupError) as error:
        raise DataError(f"{gguf}: no whole GGUF file ({error}). Fetch or install it again.") from error


_NEEDED = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")


def _dequantised(gguf: Path) -> Any:
    """The model with float32 weights. What the loader returns counts as quantised and cannot be saved."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    return model


def _tokenizer(gguf: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
