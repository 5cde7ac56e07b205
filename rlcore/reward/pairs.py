"""Preference pairs as token rows, and the order in which an epoch visits them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor

from rlcore.batches import right_pad
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.streams import permutation

COLUMNS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class TokenPairs:
    """N preference pairs: prompt plus preferred response, prompt plus the other response, tokens of each."""

    chosen: list[list[int]]
    rejected: list[list[int]]

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, indices: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor]:
        """Ids and mask, both int64 [2n, L], of n pairs: the chosen rows first, then the rejected ones."""
        rows = [side[index] for side in (self.chosen, self.rejected) for index in indices]
        return right_pad(rows, pad_id)

    def by_length(self) -> list[int]:
        """Indices from the shortest to the longest pair."""
        return sorted(range(len(self)), key=lambda index: max(len(self.chosen[index]), len(self.rejected[index])))

    def sha256(self) -> str:
        """Hash of all tokens in their order."""
        digest = hashlib.sha256()
        for row in (*self.chosen, *self.rejected):
            digest.update(numpy.array([len(row), *row], dtype=numpy.int64).tobytes())
        return digest.hexdigest()


def encode_pairs(chat: ChatFormat, columns: Mapping[str, Sequence[Any]], max_length: int) -> TokenPairs:
    """Tokenise the columns prompt, chosen and rejected.

    Raises:
        DataError: a column is missing, there is no row, or a response is no text.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(f"Found no column {', '.join(missing)}, expected {', '.join(COLUMNS)}. Rename the columns.")
    prompts = list(columns["prompt"])
    if not prompts:
        raise DataError("Found 0 preference pairs, expected at least one.")
    chosen, rejected = (encode(chat, prompts, list(columns[name]), max_length) for name in ("chosen", "rejected"))
    return TokenPairs(chosen, rejected)


def encode(chat: ChatFormat, prompts: Sequence[Prompt], responses: Sequence[str], max_length: int) -> list[list[int]]:
    """Tokens of each prompt and its response, at most max_length, with one end token behind the response.

    What is too long loses the beginning of its prompt; a response is cut only where it alone is too long.

    Raises:
        DataError: a response is no text, or the tokenizer rejects a prompt.
    """
    rows = []
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not isinstance(response, str):
            raise DataError(f"Row {row}: found the response {response!r}, expected text. Drop or mend that row.")
        prompt_ids, response_ids = chat.encode_pair(prompt, response, max_length=max_length, max_prompt_length=1)
        rows.append(prompt_ids + response_ids)
    return rows


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """All indices below count in the random order of that epoch, cut into batches; the last one may be smaller.

    Rows of like length are not put together: their prompts are alike too, and such batches teach less.
    """
    order = permutation(count, seed, "pairs", epoch)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]
