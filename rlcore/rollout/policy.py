"""The policy of a trainer and its reference, from settings or from objects that were passed."""

import sys
from pathlib import Path

import torch

from rlcore.configs import RolloutConfig
from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from rlcore.models import (
    CausalLM,
    add_lora,
    context_length,
    frozen_copy,
    load_causal_lm,
    require_same_vocabulary,
    require_separable,
    require_trainable,
    vocabulary_size,
)


def load_policy(
    config: RolloutConfig, model: CausalLM | None, reference: CausalLM | str | Path | None, device: torch.device
) -> tuple[CausalLM, CausalLM | None]:
    """The policy and its reference, on the device and in evaluation mode.

    Args:
        config: names the model where none is passed, and the adapters.
        model: trained in place.
        reference: model or folder, frozen by the training client; None takes a copy of the model as it is, and with
            adapters nothing, as there the base under them is the reference.
        device: where to put both.

    Raises:
        ConfigError: the reference is the model itself, shares weights with it or has another vocabulary, the logits of
            one cannot be computed apart from its decoder, no weight takes a gradient, one that does has less than
            float32, or see load_causal_lm and add_lora.
    """
    if reference is not None and reference is model:
        raise ConfigError(
            "Found the same object as model and reference_model; a reference must not move with the policy. "
            "Leave the reference out, and a copy is made."
        )
    policy = load_causal_lm(model if model is not None else config.model_name, device=device)
    require_separable(policy)
    if reference is not None:
        reference = load_causal_lm(reference, device=device).eval()
        require_same_vocabulary(policy, reference)
        require_separable(reference)
    if config.lora is not None:
        policy = add_lora(policy, config.lora)
    elif reference is None:
        reference = frozen_copy(policy)
    require_trainable(policy, reference)
    return policy.eval(), reference


def prompt_room(model: CausalLM, config: RolloutConfig) -> int:
    """Tokens that a prompt may have, so that max_new_tokens still fit behind it.

    Raises:
        ConfigError: there is no room.
    """
    context = context_length(model)
    longest = config.max_prompt_length
    if context is None:
        return longest if longest is not None else sys.maxsize
    if context <= config.max_new_tokens:
        raise ConfigError(
            f"max_new_tokens={config.max_new_tokens} leaves no room for a prompt: the model reads {context} tokens. "
            "Lower it."
        )
    room = context - config.max_new_tokens
    return room if longest is None else min(room, longest)


def require_own_tokens(model: CausalLM, chat: ChatFormat) -> None:
    """Let a tokenizer pass whose end and padding token the model has an embedding for.

    Raises:
        ConfigError: it has none for one of them.
    """
    largest, known = max(chat.end_id, chat.pad_id), vocabulary_size(model)
    if largest >= known:
        raise ConfigError(
            f"Found the end token {chat.end_id} and the padding token {chat.pad_id}, expected ids below {known}: the "
            "model has no more embeddings. Use the model's own tokenizer, or let it pad with its end token."
        )
