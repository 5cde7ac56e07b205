"""One sample from a model that is being trained: what is asked for, checked, and the answer in plain lists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import peft
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ConfigError, DataError
from rlcore.models import language_model_of, vocabulary_size
from rlcore.sampling import SamplingParams, StopCondition, generate, is_whole
from rlcore.stop_sequences import find_stop


class Sample(TypedDict):
    """A prompt and what the model went on with."""

    tokens: list[int]
    """Sampled tokens, the stop token or the tokens of the stop string included."""
    logprobs: list[float]
    """Nats of each of them, of the whole distribution at the temperature (at 1 where that is 0)."""
    prompt: list[int]
    """Tokens of the prompt."""


@dataclass(frozen=True)
class SampleRequest:
    """A sample that is asked for; see Lane.sample."""

    prompt: list[int]
    params: SamplingParams
    end_ids: list[int]
    stop: StopCondition | None
    seed: int | None

    def answer(self, model: nn.Module) -> Sample:
        """Draw the sample. Without a seed, one comes from torch's global generator.

        Raises:
            ConfigError: the model is no causal language model, or has no such stop token.
        """
        language_model = language_model_of(model)
        if not isinstance(language_model, PreTrainedModel | peft.PeftModel):
            raise ConfigError(f"Found a {type(model).__name__} to sample from. Use a causal language model.")
        vocab_size = vocabulary_size(language_model)
        unknown = [token for token in self.end_ids if not 0 <= token < vocab_size]
        if unknown:
            raise ConfigError(
                f"stop: found the token ids {unknown}, expected 0 to {vocab_size - 1}. Use the model's own tokenizer."
            )
        seed = int(torch.randint(2**63 - 1, ())) if self.seed is None else self.seed
        samples = generate(
            language_model, [self.prompt], self.params, seeds=[seed], end_ids=self.end_ids, pad_id=0, stop=self.stop
        )
        return {
            "tokens": samples.response_ids[0].tolist(),
            "logprobs": samples.logprobs[0].tolist(),
            "prompt": self.prompt,
        }


def sample_request(
    prompt: Sequence[int] | Tensor,
    params: SamplingParams,
    stop: Sequence[int | str] | None,
    seed: int | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> SampleRequest:
    """The request, checked; whether its ids are the model's shows when it is answered.

    Raises:
        ConfigError: stop or seed have the wrong form, or there are stop strings and no tokenizer.
        DataError: the prompt is not one row of token ids.
    """
    if seed is not None and not (is_whole(seed) and 0 <= seed < 2**128):
        raise ConfigError(f"seed={seed!r}: expected a whole number from 0 to 2**128 - 1, or None to draw one.")
    entries = _stop_entries(stop)
    strings = [entry for entry in entries if isinstance(entry, str)]
    if strings and tokenizer is None:
        raise ConfigError(
            f"stop: found the texts {strings}, which are looked for in decoded text, but no tokenizer. "
            "Pass tokenizer here or to the client, or use token ids."
        )
    condition = StopStrings(tokenizer, strings) if strings and tokenizer is not None else None
    end_ids = [int(entry) for entry in entries if not isinstance(entry, str)]
    return SampleRequest(_prompt_ids(prompt), params, end_ids, condition, seed)


class StopStrings:
    """Whether the text of a response holds a stop string. It is decoded as a whole, so token borders do not matter.

    Args:
        tokenizer: decodes the response; special tokens count by their text.
        strings: texts to stop at; empty ones match nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]):
        self.tokenizer, self.strings = tokenizer, list(strings)
        # Some decoders strip the blank at the start of a text. With other text in front, the response keeps its own.
        self._anchor: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        self._anchor_length = len(self._decode(self._anchor))

    def __call__(self, response: list[int]) -> bool:
        """True once the tokens so far complete a stop string."""
        text = self._decode(self._anchor + response)[self._anchor_length :]
        return find_stop(text, self.strings) is not None

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _stop_entries(stop: Any) -> list[int | str]:
    if stop is None:
        return []
    if isinstance(stop, str | bytes) or not isinstance(stop, Iterable):
        raise ConfigError(f"stop={stop!r}: expected a list of token ids and texts. Write [{stop!r}].")
    entries = list(stop)
    for entry in entries:
        if not (isinstance(entry, str) or is_whole(entry)):
            raise ConfigError(
                f"stop: found {entry!r}, expected token ids and texts. A tokenizer without an end token has None there."
            )
    return entries


def _prompt_ids(prompt: Any) -> list[int]:
    if isinstance(prompt, np.ndarray) and prompt.dtype.kind in "iu":
        prompt = torch.from_numpy(prompt.astype(np.int64))
    if isinstance(prompt, Tensor):
        if prompt.ndim == 2 and prompt.shape[0] == 1:
            prompt = prompt[0]
        if prompt.ndim != 1 or prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise DataError(
                f"Found a prompt of shape {list(prompt.shape)} and type {prompt.dtype}, expected token ids [L] or "
                "[1, L]. Sample one prompt after the other."
            )
        prompt = prompt.tolist()
    if isinstance(prompt, str) or not isinstance(prompt, Iterable) or not all(map(is_whole, prompt)):
        raise DataError(f"Found the prompt {prompt!r}, expected a list of token ids. Tokenize the text first.")
    return [int(token) for token in prompt]
