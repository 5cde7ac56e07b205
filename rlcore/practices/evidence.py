"""What a model folder, or the name of a model, tells about its training and size."""

import math
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rlcore.training_record import json_object, recorded_metric, recorded_trainers

_ACCURACY = "validation/accuracy"
_SUPERVISED = {"sft", "orpo"}
# A size such as 8B or 270m, as names on the hub have it.
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


def recorded_accuracy(model: str | Path) -> float | None:
    """Share of its validation pairs that a reward model ordered rightly; None where its folder does not say."""
    return recorded_metric(model, _ACCURACY)


def is_fine_tuned(model: str | Path) -> bool | None:
    """Whether a model has learnt from demonstrations: its record says so, or it has a chat template.

    None where that cannot be told, as of a name on the hub.
    """
    folder = Path(model)
    if not folder.is_dir():
        return None
    return bool(_SUPERVISED & set(recorded_trainers(folder))) or _has_chat_template(folder)


def parameter_count(model: str | Path) -> int | None:
    """Weights of a model: of its folder, else as its name says; None where neither tells."""
    files = sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    if files:
        try:
            return sum(map(_weights_in, files))
        except (OSError, SafetensorError):
            # Whoever loads the model says what is wrong with it.
            return None
    size = _SIZE.search(Path(model).name)
    return None if size is None else round(float(size[1]) * {"b": 1e9, "m": 1e6}[size[2].lower()])


def _has_chat_template(folder: Path) -> bool:
    in_settings = json_object(folder / "tokenizer_config.json").get("chat_template")
    return (folder / "chat_template.jinja").exists() or bool(in_settings)


def _weights_in(file: Path) -> int:
    with safe_open(file, framework="numpy") as tensors:
        names = tensors.keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
