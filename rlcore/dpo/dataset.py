"""Preference pairs as tokens: one prompt, a preferred response and another one."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from rlcore.batches import right_pad
from rlcore.configs import PreferenceConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.models import CausalLM, context_length, vocabulary_size
from rlcore.pair_training import Columns, preference_columns, require_pairs, require_prompt

Response = str | list[dict[str, str]]
"""Text, or chat messages that end with the assistant's; the prompt's messages may precede it."""

NO_TOKEN = -1
"""Stands for padding where tokens are compared."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """N pairs as 2N token rows, the chosen ones first. Rows start in the first column, so all padding is on the right.

    There a causal model needs no attention mask: nothing real looks at padding.
    """

    input_ids: Tensor
    """int64 [2N, L], prompt and response joined."""
    prompt_lengths: Tensor
    """int64 [2N], tokens in front of the response."""
    response_ids: Tensor
    """int64 [2N, T]."""
    response_mask: Tensor
    """bool [2N, T], True on response tokens, the end token included."""

    def ties(self) -> Tensor:
        """Pairs whose two responses are the same tokens, bool [N]."""
        chosen, rejected = self.response_ids.where(self.response_mask, NO_TOKEN).chunk(2)
        return (chosen == rejected).all(dim=1)

    def to(self, device: torch.device | str) -> "PairBatch":
        """The same batch on another device."""
        return PairBatch(
            self.input_ids.to(device, non_blocking=True),
            self.prompt_lengths.to(device, non_blocking=True),
            self.response_ids.to(device, non_blocking=True),
            self.response_mask.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class _Row:
    """Tokens of one pair. Both responses follow the same prompt tokens."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


class PreferenceDataset(Dataset[dict[str, Tensor | int]]):
    """Preference pairs, tokenised once.

    Prompt and responses are tokenised apart, so no token spans the border, and a response ends with one end token
    unless it was cut. A pair that fits into max_length is not cut. Otherwise the prompt loses its beginning (a BOS
    token stays), though it keeps max_prompt_length tokens; what is still too long is cut from the end of the responses.

    A row with an empty response is dropped. One whose two responses have equal tokens is kept and gives no gradient.
    Both are counted in a warning.

    An item holds int64 tensors without padding: `prompt_input_ids`, `prompt_attention_mask`, and, prompt and response
    joined, `chosen_input_ids`, `chosen_attention_mask`, `rejected_input_ids`, `rejected_attention_mask`; and
    `prompt_length`, where the responses begin.

    Args:
        prompts: texts, or lists of chat messages.
        chosen: preferred responses, texts or messages that end with the assistant's.
        rejected: the other ones.
        tokenizer: of the model that is trained.
        max_length: tokens of prompt and response together.
        max_prompt_length: tokens that a prompt keeps at the responses' expense.

    Attributes:
        prompts: those of the rows that are kept.
        dropped_rows, identical_rows: positions in the input.
        tokenizer, max_length, max_prompt_length: as passed.

    Raises:
        ConfigError: max_prompt_length is not within 1 .. max_length - 1, or the tokenizer has no end or padding token.
        DataError: the lists differ in length or are empty, a row has the wrong form, or no row has two responses.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        chosen: Sequence[Response],
        rejected: Sequence[Response],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int = 512,
        max_prompt_length: int = 256,
    ):
        require_pairs(prompts, chosen, rejected)
        if not 1 <= max_prompt_length < max_length:
            raise ConfigError(
                f"max_prompt_length={max_prompt_length}, max_length={max_length}: expected 1 <= max_prompt_length < "
                "max_length, so that a response keeps a token."
            )
        chat = ChatFormat(tokenizer)
        self.tokenizer = tokenizer
        self.max_length, self.max_prompt_length = max_length, max_prompt_length
        self.prompts: list[Prompt] = []
        self.dropped_rows: list[int] = []
        self.identical_rows: list[int] = []
        self._rows: list[_Row] = []
        for index, pair in enumerate(zip(prompts, chosen, rejected, strict=True)):
            row = self._encode(chat, index, *pair)
            if row is None:
                self.dropped_rows.append(index)
                continue
            if row.chosen == row.rejected:
                self.identical_rows.append(index)
            self.prompts.append(pair[0])
            self._rows.append(row)
        self._report(len(prompts))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        row = self._rows[index]
        item: dict[str, Tensor | int] = {"prompt_length": len(row.prompt)}
        parts = {
            "prompt": row.prompt,
            "chosen": row.prompt + row.chosen,
            "rejected": row.prompt + row.rejected,
        }
        for name, ids in parts.items():
            item[f"{name}_input_ids"] = torch.tensor(ids)
            item[f"{name}_attention_mask"] = torch.ones(len(ids), dtype=torch.int64)
        return item

    def batch(self, indices: Sequence[int], pad_id: int) -> PairBatch:
        """The pairs at `indices`, padded to the longest of them."""
        rows = [self._rows[index] for index in indices]
        responses = [row.chosen for row in rows] + [row.rejected for row in rows]
        prompts = [row.prompt for row in rows] * 2
        joined = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
        input_ids, _ = right_pad(joined, pad_id)
        response_ids, response_mask = right_pad(responses, pad_id)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return PairBatch(input_ids, lengths, response_ids, response_mask.bool())

    def prompt_ids(self, index: int) -> list[int]:
        """Tokens of one prompt."""
        return self._rows[index].prompt

    def length(self, index: int) -> int:
        """Tokens of the longer one of the two sequences of a pair."""
        return len(self._rows[index])

    def require_readable(self, name: str, model: CausalLM, max_length: int) -> None:
        """Let pairs pass that the model can read.

        Args:
            name: what the error calls the pairs.
            model: causal language model.
            max_length: tokens of prompt and response together that the settings allow.

        Raises:
            ConfigError: a pair is longer than max_length or the model's context.
            DataError: a token is not in the model's vocabulary.
        """
        longest, limit = max(map(len, self._rows)), length_limit(model, max_length)
        if longest > limit:
            raise ConfigError(
                f"{name}: found a pair of {longest} tokens, expected at most {limit}, the least of "
                f"max_length={max_length} and the model's context. Tokenise the pairs with max_length={limit}."
            )
        largest_id = max(max(map(max, (row.prompt, row.chosen, row.rejected))) for row in self._rows)
        if largest_id >= vocabulary_size(model):
            raise DataError(
                f"{name}: found token {largest_id}, but the model knows {vocabulary_size(model)}. "
                "Tokenise the pairs with the model's own tokenizer."
            )

    def sha256(self) -> str:
        """Hash of all tokens in their order."""
        digest = hashlib.sha256()
        for row in self._rows:
            for ids in (row.prompt, row.chosen, row.rejected):
                digest.update(numpy.array([len(ids), *ids], dtype=numpy.int64).tobytes())
        return digest.hexdigest()

    def is_written_by(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether the tokens are those of this tokenizer: the same text for each id, the same end token."""
        own = self.tokenizer
        if own is tokenizer:
            return True
        return ChatFormat(own).end_id == ChatFormat(tokenizer).end_id and own.get_vocab() == tokenizer.get_vocab()

    def figures(self) -> dict[str, float]:
        """What to look at before training: mean lengths of both sides, in tokens, and rows that teach nothing."""
        count = len(self._rows)
        return {
            "data/chosen_length_mean": sum(len(row.chosen) for row in self._rows) / count,
            "data/rejected_length_mean": sum(len(row.rejected) for row in self._rows) / count,
            "data/identical_fraction": len(self.identical_rows) / count,
            "data/dropped_count": float(len(self.dropped_rows)),
        }

    def _encode(
        self, chat: ChatFormat, index: int, prompt: Prompt, chosen: Response, rejected: Response
    ) -> _Row | None:
        """Tokens of a row; None where a response is empty."""
        require_prompt(index, prompt)
        sides = {"chosen": chosen, "rejected": rejected}
        texts = [_response_text(index, name, response, prompt) for name, response in sides.items()]
        try:
            prompt_ids = chat.encode_prompt(prompt)
            responses = [chat.encode_response(text) for text in texts]
        except DataError as error:
            raise DataError(f"Row {index}: {error}") from error
        if not all(responses):
            return None
        longest = 1 + max(map(len, responses))
        prompt_ids = chat.cut_prompt(prompt_ids, max(self.max_prompt_length, self.max_length - longest))
        room = self.max_length - len(prompt_ids)
        return _Row(prompt_ids, *([*response, chat.end_id][:room] for response in responses))

    def _report(self, count: int) -> None:
        if not self._rows:
            raise DataError(
                f"Found no trainable tokens in {count} of {count} rows: a response of each is empty. "
                "Look at the columns chosen and rejected."
            )
        if self.dropped_rows:
            logger.warning(
                "Dropped %d of %d rows with an empty response; the first is row %d.",
                len(self.dropped_rows),
                count,
                self.dropped_rows[0],
            )
        if self.identical_rows:
            logger.warning(
                "%d of %d rows have the same tokens as chosen and rejected and teach nothing; the first is row %d.",
                len(self.identical_rows),
                count,
                self.identical_rows[0],
            )


def length_limit(model: CausalLM, max_length: int) -> int:
    """Tokens of prompt and response together: max_length, or the model's context where that is shorter."""
    context = context_length(model)
    return max_length if context is None else min(max_length, context)


def pairs_of(columns: Columns, tokenizer: PreTrainedTokenizerBase, config: PreferenceConfig) -> PreferenceDataset:
    """The pairs in the columns prompt, chosen and rejected; names of others, which are not read, are logged.

    Args:
        columns: by name, one entry for each pair.
        tokenizer: of the model that is trained.
        config: max_length and max_prompt_length.

    Raises:
        DataError: a column is missing; see also PreferenceDataset.
    """
    prompts, chosen, rejected = preference_columns(columns)
    return PreferenceDataset(prompts, chosen, rejected, tokenizer, config.max_length, config.max_prompt_length)


def _response_text(index: int, name: str, response: object, prompt: Prompt) -> str:
    """Text of a response that is text or messages. Messages of the prompt that are repeated in front of it go."""
    if isinstance(response, str):
        return response
    if not isinstance(response, list) or not response or not all(isinstance(part, Mapping) for part in response):
        raise DataError(
            f"Row {index}, {name}: found {response!r}, expected text or chat messages. Drop or mend that row."
        )
    last = response[-1]
    text = last.get("content")
    if last.get("role") != "assistant" or not isinstance(text, str):
        raise DataError(
            f"Row {index}, {name}: the last message is {last!r}, expected one of the assistant with text. "
            "Check that the columns are not swapped."
        )
    if response[:-1] and response[:-1] != prompt:
        raise DataError(
            f"Row {index}, {name}: the messages before the answer differ from the prompt. "
            "Leave them out, or repeat the prompt's messages exactly."
        )
    return text
