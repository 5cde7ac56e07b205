"""Prompts: tokenised once, and chosen for each iteration in an order that a seed fixes."""

import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.streams import permutation

Prompts = Sequence[str | Mapping[str, Any]]
"""Texts, or mappings with a `prompt` that is text or chat messages; the other keys reach the reward source."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready to be sampled from."""

    text: str
    """What the reward source reads: the prompt itself, or the content of the last of its messages."""
    ids: list[int]
    """Its tokens."""
    metadata: Mapping[str, Any]
    """The other columns of its row."""
    prompt: Prompt
    """As it was given: text, or chat messages."""


def encode_prompts(rows: Prompts, chat: ChatFormat, max_length: int) -> list[EncodedPrompt]:
    """Tokenise prompts once. A prompt of more than max_length tokens loses its beginning, a leading BOS stays.

    How many were cut is logged as a warning.

    Args:
        rows: texts, or mappings with a `prompt` that is text or chat messages; their other keys become metadata.
        chat: format of the model.
        max_length: in tokens.

    Raises:
        DataError: rows are no list or what is read like one, there is none, a row has no `prompt`, or a prompt is
            empty, neither text nor messages, or rejected by the chat template.
    """
    if isinstance(rows, str | Mapping):
        raise DataError(f"Found a {type(rows).__name__}, {str(rows)[:60]!r}, expected a list of prompts. Make it one.")
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise DataError(
            f"Found a {type(rows).__name__} as prompts, expected a list of prompts, whose order is part of the run. "
            "Make it one."
        )
    if not len(rows):
        raise DataError("Found 0 prompts, expected at least one. Pass the prompts to train on.")
    found = [_prompt_and_columns(index, row) for index, row in enumerate(rows)]
    whole = [_encoded(chat, index, prompt) for index, (prompt, _) in enumerate(found)]
    cut = [index for index, ids in enumerate(whole) if len(ids) > max_length]
    if cut:
        logger.warning(
            "%d of %d prompts have more than the %d tokens that there is room for and lose their beginning; prompt %d "
            "is the first of them. Shorten them, or lower max_new_tokens.",
            len(cut),
            len(whole),
            max_length,
            cut[0],
        )
    return [
        EncodedPrompt(_text_of(prompt), chat.cut_prompt(ids, max_length), columns, prompt)
        for (prompt, columns), ids in zip(found, whole, strict=True)
    ]


def are_given(rows: Prompts | None) -> TypeGuard[Prompts]:
    """Whether there are prompts: not None, and no empty list."""
    return rows is not None and not (isinstance(rows, Sized) and len(rows) == 0)


def choose_prompts(count: int, batch_size: int, iteration: int, seed: int, copies: int = 1) -> list[int]:
    """Indices of the prompts of one iteration, numbered from 0: one seeded permutation of all prompts after another.

    Args:
        count: of all prompts.
        batch_size: indices that are returned.
        iteration, seed: name the permutation and the place in it.
        copies: how many times each index stands there, in a row.

    Raises:
        ConfigError: copies does not divide batch_size.
    """
    if batch_size % copies:
        raise ConfigError(f"batch_size={batch_size}: each prompt is answered {copies} times. Use a multiple of that.")
    batch_size //= copies
    chosen: list[int] = []
    position = iteration * batch_size
    while len(chosen) < batch_size:
        epoch, offset = divmod(position, count)
        order = permutation(count, seed, "prompts", epoch)
        taken = order[offset : offset + batch_size - len(chosen)]
        chosen += taken
        position += len(taken)
    return [index for index in chosen for _ in range(copies)]


def _prompt_and_columns(index: int, row: str | Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
    if not isinstance(row, str | Mapping):
        raise DataError(f"Prompt {index}: found {row!r}, expected a text or a mapping with `prompt`. Drop or mend it.")
    columns: dict[str, Any] = {"prompt": row} if isinstance(row, str) else dict(row)
    prompt = columns.pop("prompt", None)
    if not (_is_text(prompt) or _are_messages(prompt)):
        raise DataError(
            f"Prompt {index}: found {prompt!r}, expected a text that is not empty, or messages with `role` and "
            "`content`. Drop or mend that row."
        )
    return cast(Prompt, prompt), columns


def _encoded(chat: ChatFormat, index: int, prompt: Prompt) -> list[int]:
    try:
        return chat.encode_prompt(prompt)
    except DataError as error:
        raise DataError(f"Prompt {index}: {error}") from error


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in value)
        and all(isinstance(message.get("content"), str) for message in value)
        and _is_text(value[-1]["content"])
    )


def _text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]
