"""The decoder or encoder below a reward head: loading it, preparing it, and calling it so that padding has no say."""

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import peft
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError
from rlcore.functional.masking import position_ids_from
from rlcore.models import context_length


class ForwardArguments:
    """What a model is called with besides the ids: padding on either side then changes no real token's hidden state.

    Attributes:
        max_length: tokens that a row may have; None where the model's config names no limit.
    """

    def __init__(self, model: PreTrainedModel):
        self._names = frozenset(inspect.signature(model.forward).parameters)
        self._first_position = _first_position(model)
        positions = context_length(model)
        # a config may say -1 for "no limit"
        self.max_length = positions - self._first_position if positions is not None and positions > 0 else None

    def __call__(self, attention_mask: Tensor) -> dict[str, Any]:
        """Keyword arguments for rows with attention_mask, 0/1 [B, L]."""
        arguments: dict[str, Any] = {"attention_mask": attention_mask}
        if "use_cache" in self._names:
            arguments["use_cache"] = False
        if "position_ids" in self._names:
            arguments["position_ids"] = position_ids_from(attention_mask) + self._first_position
        return arguments


def load_body(name: str | Path) -> PreTrainedModel:
    """The decoder or encoder of a model folder or hub name, float32, without the layers on top of it.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no model that transformers knows.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """
    return load_complete(AutoModel, name, may_be_random=("pooler.",))


def load_complete(auto_class: Any, name: str | Path, may_be_random: Collection[str] = ()) -> PreTrainedModel:
    """The model of a folder or hub name, float32. Code from the model's repository is never run.

    Args:
        auto_class: such as AutoModel.
        name: folder or hub name.
        may_be_random: beginnings of the names of weights that are not used, so that they may be missing.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no model of that class.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """
    try:
        model, report = auto_class.from_pretrained(
            name, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    except SafetensorError as error:
        raise CheckpointError(f"The weights in {name} are damaged: {error}. Restore or train them again.") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model_name={str(name)!r}: {reason} Expected a model folder or a hub name.") from error
    mismatched = {key[0] for key in report["mismatched_keys"]}
    missing = {*report["missing_keys"], *mismatched}
    lost = sorted(key for key in missing if not key.startswith(tuple(may_be_random)))
    if lost:
        raise CheckpointError(
            f"{name}: {len(lost)} weights are missing or of another shape, such as {lost[0]}; they would be random. "
            "Restore the folder, or name another one."
        )
    return cast(PreTrainedModel, model)


def prepare_body(body: PreTrainedModel) -> PreTrainedModel:
    """Remove, in place, what a body would do beside or against the reward head.

    Raises:
        ConfigError: it is an encoder-decoder.
    """
    refuse_encoder_decoder(body)
    if getattr(body, "pooler", None) is not None:
        # The head has its own pooling; an idle layer would be saved and never trained.
        body.register_module("pooler", None)
    embedding = body.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        # Masks handle the padding. Where the end token doubles as padding, its embedding has to learn.
        embedding.padding_idx = None
    return body


def refuse_encoder_decoder(model: PreTrainedModel) -> None:
    """Let a decoder or an encoder pass.

    Raises:
        ConfigError: the model is both.
    """
    if model.config.is_encoder_decoder:
        raise ConfigError(f"{type(model).__name__}: found an encoder-decoder, expected a decoder or an encoder.")


def add_adapters(
    model: PreTrainedModel, config: RewardModelConfig, task_type: str = "FEATURE_EXTRACTION"
) -> peft.PeftModel:
    """Freeze the model and put low-rank adapters into all its linear layers. They start as no change at all.

    Args:
        model: a decoder or encoder, or a classifier.
        config: rank, scale and dropout of the adapters.
        task_type: peft's name of what the model does; with "SEQ_CLS" the head of a classifier goes on learning.

    Raises:
        ConfigError: the model has layers that take no adapters.
    """
    settings = peft.LoraConfig(
        task_type=task_type,
        r=config.lora_rank,
        lora_alpha=cast(int, config.lora_alpha),  # fractions work
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
    )
    try:
        return cast(peft.PeftModel, peft.get_peft_model(model, settings))
    except ValueError as error:
        raise ConfigError(
            f"use_lora=True: {type(model).__name__} takes no adapters ({error}). Train all weights."
        ) from error


def _first_position(model: nn.Module) -> int:
    """Position of the first token, as some encoders count from behind their padding position."""
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.padding_idx + 1
    return 0
