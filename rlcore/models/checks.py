"""What a trainer is given, checked before it moves, copies or trains anything."""

from collections.abc import Callable
from typing import Any

import peft
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ConfigError


def require_arguments(
    config: object, expected: type, tokenizer: object | None = None, **sinks: Callable[..., Any]
) -> None:
    """Let settings of the expected class, a tokenizer that is an object or None, and sinks that can be called pass.

    Raises:
        ConfigError: one of them is something else. Names it.
    """
    if not isinstance(config, expected):
        raise ConfigError(
            f"Found a {type(config).__name__}, expected a {expected.__name__}. Build one: {expected.__name__}(...)."
        )
    if tokenizer is not None:
        require_tokenizer(tokenizer)
    for name, sink in sinks.items():
        if not callable(sink):
            raise ConfigError(f"{name}: found {sink!r}, expected a function of a step and what is reported. Pass one.")


def require_tokenizer(tokenizer: object) -> None:
    """Let a tokenizer of transformers pass.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(
            f"tokenizer: found a {type(tokenizer).__name__}, expected a tokenizer of transformers. "
            "Load one: AutoTokenizer.from_pretrained(...)."
        )


def require_causal_lm(model: object) -> None:
    """Let a causal language model with weights on a real device pass.

    Raises:
        ConfigError: it is something else, an encoder-decoder, or on the device `meta`, where weights have no values.
    """
    if not isinstance(model, PreTrainedModel | peft.PeftModel) or getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(
            f"Found a {type(model).__name__}, expected a causal language model of transformers, with or without "
            "adapters. Load one: AutoModelForCausalLM.from_pretrained(...)."
        )
    without_values = next((name for name, weight in model.named_parameters() if weight.is_meta), None)
    if without_values is not None:
        raise ConfigError(
            f"Found weights on the device meta, such as {without_values}, expected values. Load the model without "
            "init_empty_weights or device_map='meta'."
        )


def require_finite(model: nn.Module) -> None:
    """Let a model pass whose weights are numbers.

    Raises:
        ConfigError: one holds NaN or infinity. Names the first.
    """
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ConfigError(
                f"{type(model).__name__}: found NaN or infinity in {name}, expected finite weights. Load the model "
                "again, or go back to a checkpoint before it diverged."
            )


def require_trainable(policy: nn.Module, reference: nn.Module | None) -> None:
    """Let a policy pass that can learn, beside a reference that stays where it is while it does.

    Raises:
        ConfigError: no weight takes a gradient, one that does has less than float32, or the reference, which is frozen,
            shares a weight with the policy.
    """
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    if not trained:
        raise ConfigError(
            "Found a model that is frozen as a whole, expected at least one weight that takes a gradient. Call "
            "model.requires_grad_(True), or train adapters on it with `lora`."
        )
    for name, weight in trained.items():
        if torch.finfo(weight.dtype).bits < 32:
            raise ConfigError(
                f"Found trained weights in {weight.dtype}, such as {name}, expected float32: small updates are lost in "
                "less. Pass model.float(), or train adapters on it with `lora`."
            )
    frozen = () if reference is None else {_storage_of(weight) for weight in reference.parameters() if weight.numel()}
    shared = next((name for name, weight in policy.named_parameters() if _storage_of(weight) in frozen), None)
    if shared is not None:
        raise ConfigError(
            f"Found {shared} of the model in reference_model too; a reference must not move with the policy. Pass "
            "copy.deepcopy(model), or leave the reference out, and a copy is made."
        )


def _storage_of(weight: nn.Parameter) -> tuple[torch.device, int]:
    return weight.device, weight.untyped_storage().data_ptr()
