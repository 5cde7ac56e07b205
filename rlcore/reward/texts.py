"""Whole texts, or prompts with their responses, as token rows; and the scores of many rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.batches import right_pad
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.models import evaluation_mode

Text = str | tuple[Prompt, str]
"""A whole text, or a prompt and its response."""


def encode_texts(chat: ChatFormat, texts: Sequence[Text], max_length: int) -> list[list[int]]:
    """Tokens of each text, at most max_length, with one end token behind it.

    A whole text is encoded as the tokenizer writes it, a prompt and its response as the chat format does. What is too
    long loses its beginning; of prompt and response, the prompt loses it.

    Raises:
        ConfigError: max_length < 2.
        DataError: the texts are a single text or no list, or a row is neither text nor a prompt and a response, is a
            blank text, or cannot be encoded. Names the row.
    """
    if max_length < 2:
        raise ConfigError(f"max_length={max_length}: expected at least 2, one token of text and the end token.")
    if isinstance(texts, str):
        raise DataError(f"Found the text {texts!r}, expected a list of texts. Put it into a list.")
    if not isinstance(texts, Iterable):
        raise DataError(f"Found a {type(texts).__name__} as texts, expected a list. Pass one, which may be empty.")
    return [_encode_row(chat, text, row, max_length) for row, text in enumerate(texts)]


def score_rows(
    model: nn.Module,
    score: Callable[[Tensor, Tensor], Tensor],
    rows: Sequence[Sequence[int]],
    *,
    pad_id: int,
    batch_size: int,
) -> list[Any]:
    """What `score` says about each row, in the order given; computed in batches of like length, without dropout.

    Equal rows are scored once and have equal scores, to the last bit.

    Args:
        model: in evaluation mode meanwhile; every module has its own mode again afterwards.
        score: gets ids and mask, int64 [B, L], and returns [B], or [B, K] for K numbers of each row.
        rows: token ids.
        pad_id: fills the batches.
        batch_size: B, at most.

    Raises:
        ConfigError: batch_size < 1.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}: expected at least 1.")
    keys = [tuple(row) for row in rows]
    distinct = sorted(dict.fromkeys(keys), key=len)
    device = next(model.parameters()).device
    scores: dict[tuple[int, ...], Any] = {}
    with torch.inference_mode(), evaluation_mode(model):
        for start in range(0, len(distinct), batch_size):
            batch = distinct[start : start + batch_size]
            input_ids, mask = right_pad(batch, pad_id)
            scores |= zip(batch, score(input_ids.to(device), mask.to(device)).tolist(), strict=True)
    return [scores[key] for key in keys]


def _encode_row(chat: ChatFormat, text: Text, row: int, max_length: int) -> list[int]:
    try:
        return _encode(chat, text, max_length)
    except DataError as error:
        raise DataError(f"Row {row}: {error}") from error


def _encode(chat: ChatFormat, text: Text, max_length: int) -> list[int]:
    if isinstance(text, str):
        if not text.strip():
            raise DataError(f"Found the text {text!r}, expected one to score. Drop it, or pass its prompt with it.")
        ids = chat.encode_text(text)
        while ids and ids[-1] == chat.end_id:
            ids.pop()
        return [*chat.cut_prompt(ids, max_length - 1), chat.end_id]
    if not isinstance(text, Sequence) or len(text) != 2 or not isinstance(text[1], str):
        raise DataError(f"Found {text!r}, expected text, or a prompt and a response. Drop or mend that row.")
    prompt_ids, response_ids = chat.encode_pair(text[0], text[1], max_length=max_length, max_prompt_length=1)
    return prompt_ids + response_ids
