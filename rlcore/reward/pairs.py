"""Preference pairs as token rows of prompt and response."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor

from rlcore.batches import right_pad
from rlcore.formatting import ChatFormat, Prompt
from rlcore.pair_training import preference_columns, require_prompt
from rlcore.reward.texts import encode_texts


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

    def length(self, index: int) -> int:
        """Tokens of the longer one of the two rows of a pair."""
        return max(len(self.chosen[index]), len(self.rejected[index]))

    def is_tie(self, index: int) -> bool:
        """Whether the two rows of a pair are the same tokens."""
        return self.chosen[index] == self.rejected[index]

    def sha256(self) -> str:
        """Hash of all tokens in their order."""
        digest = hashlib.sha256()
        for row in (*self.chosen, *self.rejected):
            digest.update(numpy.array([len(row), *row], dtype=numpy.int64).tobytes())
        return digest.hexdigest()


def encode_pairs(chat: ChatFormat, columns: Mapping[str, Sequence[Any]], max_length: int) -> TokenPairs:
    """Tokenise the columns prompt, chosen and rejected.

    Raises:
        DataError: a column is missing, there is no row, a prompt is blank or neither text nor chat messages, or a
            response is no text.
    """
    prompts, chosen, rejected = preference_columns(columns)
    for row, prompt in enumerate(prompts):
        require_prompt(row, prompt)
    return TokenPairs(encode(chat, prompts, chosen, max_length), encode(chat, prompts, rejected, max_length))


def encode(chat: ChatFormat, prompts: Sequence[Prompt], responses: Sequence[str], max_length: int) -> list[list[int]]:
    """Tokens of each prompt and its response, at most max_length, with one end token behind the response.

    What is too long loses the beginning of its prompt; a response is cut only where it alone is too long.

    Raises:
        DataError: a response is no text, or the tokenizer rejects a prompt.
    """
    return encode_texts(chat, list(zip(prompts, responses, strict=True)), max_length)
