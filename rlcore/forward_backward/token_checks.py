"""Whether tokens and the tensors beside them fit each other and the model.

Asked in the caller's thread, before anything is queued: on a GPU a wrong id would end the process.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import peft
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.configs import PPOConfig
from rlcore.errors import ConfigError, DataError
from rlcore.functional.logprobs import IGNORED_LABEL
from rlcore.models import context_length, language_model_of, vocabulary_size


class Limits(NamedTuple):
    """What a model can read; None where it does not say."""

    vocab_size: int | None = None
    """Token ids lie below it."""
    context: int | None = None
    """Real tokens of a row, at most."""


UNLIMITED = Limits()


def limits_of(model: nn.Module) -> Limits:
    """What the language model in a policy can read."""
    language_model = language_model_of(model)
    if not isinstance(language_model, PreTrainedModel | peft.PeftModel):
        return Limits()
    return Limits(vocabulary_size(language_model), context_length(language_model))


def token_ids(name: str, ids: Any) -> Tensor:
    """Rows of whole numbers as int64.

    Raises:
        DataError: they are no tensor of integers.
    """
    if not isinstance(ids, Tensor):
        raise DataError(
            f"Found {name} as {type(ids).__name__}, expected a tensor of token ids [B, L]. "
            "Tokenize with return_tensors='pt' and padding, or wrap the rows in torch.tensor()."
        )
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise DataError(f"Found {name} of type {ids.dtype}, expected whole numbers. Pass token ids, such as int64.")
    return ids.long()


def check_ids(name: str, ids: Tensor, vocab_size: int | None) -> None:
    """Let token ids pass that the model has; of labels also those to ignore.

    Raises:
        DataError: an id is negative or beyond the vocabulary.
    """
    wrong = ids < 0 if vocab_size is None else (ids < 0) | (ids >= vocab_size)
    if name == "labels":
        wrong &= ids != IGNORED_LABEL
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        last = "" if vocab_size is None else f" to {vocab_size - 1}"
        ignored = f", or {IGNORED_LABEL} where nothing is learned" if name == "labels" else ""
        raise DataError(
            f"{name}: found {int(ids[row, column])} in row {row}, column {column}, expected ids from 0{last}{ignored}. "
            "Use the model's own tokenizer."
        )


def check_mask(attention_mask: Any) -> None:
    """Let a mask pass that marks real tokens with 1 and padding with 0.

    Raises:
        DataError: it is no tensor, holds other numbers, or marks no token at all.
    """
    if not isinstance(attention_mask, Tensor):
        raise DataError(
            f"Found attention_mask as {type(attention_mask).__name__}, expected a tensor [B, L]. "
            "Tokenize with return_tensors='pt', or leave it out where all tokens are real."
        )
    real = attention_mask == 1
    if not bool((real | (attention_mask == 0)).all()):
        raise DataError(
            "Found an attention_mask with other numbers than 0 and 1, expected 1 on real tokens and 0 on padding. "
            "Weights of tokens belong into a loss function of your own."
        )
    if not bool(real.any()):
        raise DataError("Found an attention_mask of zeros alone, expected a 1 on each real token. Drop empty batches.")


def check_length(attention_mask: Tensor | None, length: int, context: int | None) -> None:
    """Let rows [B, L] pass that the model can read to their ends.

    Raises:
        DataError: a row has more real tokens than the model's context.
    """
    longest = length if attention_mask is None else int(attention_mask.sum(dim=1).max())
    if context is not None and longest > context:
        raise DataError(f"Found a row of {longest} tokens, expected at most the model's context of {context}. Cut it.")


def check_tensors(arguments: Mapping[str, Any], mask: Tensor) -> None:
    """Let the tensors of a named loss pass that are numbers wherever a target counts.

    Args:
        arguments: of the loss; tensors are [B, M].
        mask: bool [B, M], True on targets that count.

    Raises:
        DataError: NaN or infinity on a target that counts.
    """
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.shape == mask.shape and not bool(value[mask].isfinite().all()):
            raise DataError(
                f"{name}: found a number that is not finite, expected one for each target that counts. "
                "Mend what it was computed from."
            )


def check_coefficients(arguments: Mapping[str, Any]) -> None:
    """Let the numbers of a named loss pass that PPOConfig would take.

    Raises:
        ConfigError: one is out of range, or no number.
    """
    for name in arguments.keys() & PPOConfig.model_fields.keys():
        value, field = arguments[name], PPOConfig.model_fields[name]
        bounded: Any = Annotated[field.annotation, field]
        try:
            TypeAdapter(bounded).validate_python(value, strict=True)
            finite = value is None or math.isfinite(value)
        except ValidationError as error:
            raise ConfigError(f"{name}={value!r}: {error.errors()[0]['msg']}. The bounds are PPOConfig's.") from None
        if not finite:
            raise ConfigError(f"{name}={value!r}: expected a finite number. The bounds are PPOConfig's.")
