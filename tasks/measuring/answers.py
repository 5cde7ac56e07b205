"""Answers of a model to prompts, and how likely another model finds them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from rlcore.batches import join
from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward.memory import RowLimit, measure_in_parts
from rlcore.models import (
    CausalLM,
    PPOModel,
    choose_device,
    context_length,
    evaluation_mode,
    load_causal_lm,
    load_tokenizer,
)
from rlcore.sampling import SamplingParams, generate

BATCH_ROWS = 256
"""Responses that are sampled or read at once, or fewer where the device has no memory for so many."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, eq=False)
class Answers:
    """Responses to prompts, one of each in the order of the prompts."""

    prompt_ids: list[list[int]]
    """Tokens of each prompt."""
    response_ids: list[list[int]]
    """Tokens of each response, the end token included."""
    texts: list[str]
    """Each response without its end token."""
    finished: list[bool]
    """Whether the response ended by itself."""
    logprobs: list[Tensor]
    """For each response [T], nats of its tokens when they were sampled."""


class Speaker:
    """A model that answers, with its tokenizer.

    Args:
        folder: model folder.

    Raises:
        ConfigError, CheckpointError: the folder holds no whole model.
    """

    def __init__(self, folder: Path | str):
        self.folder = folder
        self.model: CausalLM = load_causal_lm(folder, device=choose_device(None))
        self.chat = ChatFormat(load_tokenizer(folder))
        self.context: int | None = context_length(self.model)

    def answer(self, prompts: Sequence[str], params: SamplingParams, seeds: Sequence[int]) -> Answers:
        """Sample one response to each prompt.

        Raises:
            ConfigError: the longest response leaves no room for a prompt.
            DeviceMemoryError: the device has no room for a single row.
        """
        prompt_ids = [self.encode_prompt(prompt, params.max_new_tokens) for prompt in prompts]

        def sampled(model: nn.Module, rows: list[int]) -> list[tuple[list[int], bool, Tensor]]:
            samples = generate(
                cast(CausalLM, model),
                [prompt_ids[row] for row in rows],
                params,
                seeds=[seeds[row] for row in rows],
                end_ids=[self.chat.end_id],
                pad_id=self.chat.pad_id,
            )
            nats = [row[mask].cpu() for row, mask in zip(samples.logprobs, samples.response_mask, strict=True)]
            return list(zip(samples.response_lists(), samples.terminated.tolist(), nats, strict=True))

        results = _in_parts(self.model, len(prompts), sampled, RowLimit("sampling"))
        return Answers(
            prompt_ids,
            response_ids=[ids for ids, _, _ in results],
            texts=[self.chat.decode_response(ids) for ids, _, _ in results],
            finished=[ended for _, ended, _ in results],
            logprobs=[nats for _, _, nats in results],
        )

    def encode_prompt(self, prompt: str, response_length: int) -> list[int]:
        """Tokens of a prompt that leaves room for a response; a longer one loses its beginning.

        Raises:
            ConfigError: there is no room.
        """
        ids = self.chat.encode_prompt(prompt)
        if self.context is None:
            return ids
        if response_length >= self.context:
            raise ConfigError(
                f"A response of {response_length} tokens leaves no room for a prompt: {self.folder} reads "
                f"{self.context} tokens. Lower max_new_tokens."
            )
        return self.chat.cut_prompt(ids, self.context - response_length)

    def logprobs_of(
        self, prompt_ids: Sequence[list[int]], response_ids: Sequence[list[int]], temperature: float
    ) -> list[Tensor]:
        """For each response [T], nats of its tokens under this model, by reading prompt and response (no sampling)."""
        reader = PPOModel(self.model)

        def read(model: nn.Module, rows: list[int]) -> list[Tensor]:
            asked, answered = ([ids[row] for row in rows] for ids in (prompt_ids, response_ids))
            sequences = join(asked, answered, self.chat.pad_id).to(self.model.device)
            logprobs = reader.response_outputs(sequences, temperature).logprobs
            return [row[mask].cpu() for row, mask in zip(logprobs, sequences.response_mask, strict=True)]

        with torch.inference_mode(), evaluation_mode(reader):
            return _in_parts(reader, len(prompt_ids), read, RowLimit("reading"))

    def text_logprobs(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Tensor]:
        """For each response [T], nats of its tokens after its prompt, the end token left out."""
        response_ids = [self.chat.encode_response(response) for response in responses]
        prompt_ids = [self.encode_prompt(prompt, len(ids)) for prompt, ids in zip(prompts, response_ids, strict=True)]
        return self.logprobs_of(prompt_ids, response_ids, 1.0)


def _in_parts(
    model: nn.Module, count: int, work: Callable[[nn.Module, list[int]], list[ResultT]], limit: RowLimit
) -> list[ResultT]:
    """What `work` makes of each of the rows 0 to count - 1, called for as many at once as the device takes."""
    return list(chain(*measure_in_parts(model, range(count), work, BATCH_ROWS, limit)))
