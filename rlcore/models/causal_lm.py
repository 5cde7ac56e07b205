"""A causal language model as a thing to be read: its halves, its sizes, its mode."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import peft
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.functional.masking import position_ids_from

CausalLM = PreTrainedModel | peft.PeftModel


class TrunkAndHead:
    """The two halves of a causal language model, called apart: tokens to hidden states, hidden states to logits.

    Args:
        model: a causal language model, with or without adapters.

    Raises:
        ConfigError: the model has no decoder or no output layer of its own.
    """

    def __init__(self, model: CausalLM):
        causal_lm = without_wrapper(model)
        self.trunk: nn.Module = causal_lm.get_decoder()
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        if self.trunk is None or self.trunk is causal_lm or self.head is None:
            raise ConfigError(
                f"{type(causal_lm).__name__}: found no decoder with an output layer. Use a causal language model."
            )
        self.arguments = frozenset(inspect.signature(self.trunk.forward).parameters)
        config = causal_lm.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale: float = (getattr(config, "logit_scale", None) or 1) / (
            getattr(config, "logits_scaling", None) or 1
        )

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, **arguments: Any) -> Tensor:
        """Hidden states [B, L, H] that the head reads.

        Positions count real tokens, so a left-padded row is read as it would be alone. Without attention_mask nothing
        may be padded on the left; padding on the right changes nothing before it.
        """
        if attention_mask is not None and "position_ids" in self.arguments and "position_ids" not in arguments:
            arguments["position_ids"] = position_ids_from(attention_mask)
        return cast(Tensor, self.trunk(input_ids=input_ids, attention_mask=attention_mask, **arguments)[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], scaled and capped as in the model's own forward pass."""
        logits = self.head(hidden)
        if self._scale != 1:
            logits = logits * self._scale
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)


def without_wrapper(model: CausalLM) -> PreTrainedModel:
    """The language model itself; adapters stay inside its layers."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, peft.PeftModel) else model


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every submodule's own mode again afterwards, exceptions included."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def context_length(model: CausalLM) -> int | None:
    """Tokens that the model reads at most; None where its config names no limit."""
    return getattr(without_wrapper(model).config.get_text_config(), "max_position_embeddings", None)


def vocabulary_size(model: CausalLM) -> int:
    """Tokens that the model has an embedding for."""
    return cast(nn.Embedding, without_wrapper(model).get_input_embeddings()).num_embeddings


def require_same_vocabulary(model: CausalLM, reference: CausalLM) -> None:
    """Let a reference pass that knows as many tokens as the policy.

    Raises:
        ConfigError: it knows more or fewer.
    """
    sizes = vocabulary_size(model), vocabulary_size(reference)
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"Found {sizes[0]} tokens in the policy's vocabulary and {sizes[1]} in the reference's, expected the same "
            "tokens. Use a reference with the policy's tokenizer."
        )


def require_separable(model: CausalLM) -> None:
    """Refuse a model whose logits come out differently when decoder and output layer are called apart.

    Raises:
        ConfigError: they do, or it has no decoder or no output layer of its own.
    """
    parts = TrunkAndHead(model)
    ids = torch.tensor([[1, 2]], device=parts.head.weight.device)
    with torch.no_grad(), evaluation_mode(model):
        whole = model(input_ids=ids).logits
        apart = parts.logits(parts.hidden(ids))
    if not torch.allclose(apart, whole, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"{type(without_wrapper(model)).__name__} does more to its logits than scale and cap them, so decoder and "
            "output layer cannot be called apart. Use another model."
        )
