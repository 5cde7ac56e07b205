"""Token rows of unequal length as rectangles: padding, and the batch of prompts joined with responses.

Masks come from lengths, never from comparing ids with the padding id: where it equals the end token, no end is hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.errors import DataError


@dataclass(frozen=True, eq=False)
class Sequences:
    """Left-padded prompts joined with right-padded responses; L = P + T."""

    input_ids: Tensor
    """int64 [B, L]."""
    attention_mask: Tensor
    """int64 [B, L], 1 on real tokens."""
    response_mask: Tensor
    """bool [B, T], True on sampled tokens, the end token included. Tokens of others inside a response, such as the
    result of a tool, have attention but are not in this mask."""

    @property
    def prompt_length(self) -> int:
        """P, the columns in front of the responses."""
        return self.input_ids.shape[1] - self.response_mask.shape[1]

    @property
    def response_ids(self) -> Tensor:
        """int64 [B, T]."""
        return self.input_ids[:, self.prompt_length :]

    @property
    def response_lengths(self) -> Tensor:
        """int64 [B], tokens of each response, whoever wrote them."""
        return self.attention_mask[:, self.prompt_length :].sum(dim=1)

    def select(self, index: Tensor | slice | list[int]) -> "Sequences":
        """The rows at `index`, without the leading columns that are padding in all of them.

        T stays as it is, so [B, T] tensors that belong to the batch take the same index. Positions are counted from the
        first real token, so the dropped columns change no result beyond rounding.
        """
        attention_mask = self.attention_mask[index]
        used = attention_mask[:, : self.prompt_length].any(dim=0).nonzero()
        start = int(used[0]) if len(used) else 0
        return Sequences(self.input_ids[index][:, start:], attention_mask[:, start:], self.response_mask[index])

    def to(self, device: torch.device | str) -> "Sequences":
        """The same batch on another device."""
        return Sequences(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
            self.response_mask.to(device, non_blocking=True),
        )

    def __len__(self) -> int:
        return self.input_ids.shape[0]


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, both int64 [B, longest row], the rows ending in the last column; mask 1 on real tokens."""
    width = max((len(row) for row in rows), default=0)
    ids = [[pad_id] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return _rectangle(ids, width), _rectangle(mask, width)


def right_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, both int64 [B, longest row], the rows starting in the first column; mask 1 on real tokens."""
    width = max((len(row) for row in rows), default=0)
    ids = [list(row) + [pad_id] * (width - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return _rectangle(ids, width), _rectangle(mask, width)


def join(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    pad_id: int,
    sampled: Sequence[Sequence[bool]] | None = None,
) -> Sequences:
    """Batch of prompts and their responses.

    Args:
        prompts, responses: token ids.
        pad_id: fills the rows.
        sampled: for each response token whether it was sampled; None where all were.

    Raises:
        DataError: the counts differ, or a prompt has no token: its first response token would have no predecessor.
    """
    if len(prompts) != len(responses):
        raise DataError(
            f"Found {len(prompts)} prompts and {len(responses)} responses. Pass one response for each prompt."
        )
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(
                f"Row {row}: the prompt has no token. Expected at least one; start it with a BOS token or text."
            )
    if sampled is not None and list(map(len, sampled)) != list(map(len, responses)):
        raise DataError(
            f"Found {list(map(len, sampled))} marks for responses of {list(map(len, responses))} tokens. "
            "Pass one mark for each token."
        )
    prompt_ids, prompt_mask = left_pad(prompts, pad_id)
    response_ids, attention_mask = right_pad(responses, pad_id)
    return Sequences(
        torch.cat([prompt_ids, response_ids], dim=1),
        torch.cat([prompt_mask, attention_mask], dim=1),
        (attention_mask if sampled is None else right_pad(sampled, 0)[0]).bool(),
    )


def _rectangle(rows: list[list[int]], width: int) -> Tensor:
    # The reshape keeps two dimensions where there is no row or no column.
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), width)
