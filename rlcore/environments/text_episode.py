"""Prompts in turn, and the response that grows token by token behind one of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import Observation
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.formatting import ChatFormat, require_text
from rlcore.stop_sequences import checked_stop_sequences, find_stop


class PromptCycle:
    """Prompts in their order, the first again after the last.

    Raises:
        ConfigError: there is no prompt, or one is empty or no text.
    """

    def __init__(self, prompts: Sequence[str]):
        if isinstance(prompts, str) or not len(prompts):
            raise ConfigError(f"prompts: found {prompts!r}, expected a list with at least one text.")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str) or not prompt.strip():
                raise ConfigError(f"prompts[{index}]: found {prompt!r}, expected a text that is not empty.")
        self.prompts = list(prompts)
        self._turn = 0

    def next(self) -> tuple[int, str]:
        """Index and text of the prompt whose turn it is."""
        index = self._turn
        self._turn = (index + 1) % len(self.prompts)
        return index, self.prompts[index]


class TextEpisode:
    """The episode of a text environment.

    It ends with the end token, with a stop string in the generated text, or with max_length tokens. Generated text is
    decoded from all its tokens at once, so characters that span tokens come out whole; it holds no end, padding or BOS
    token and nothing from the stop string on.

    Args:
        tokenizer: of the policy.
        prompts: played in turn.
        max_length: longest response, and longest observation, in tokens.
        stop_sequences: texts that end an episode.
        temperature: what the policy should sample at; part of the metadata of every observation.

    Raises:
        ConfigError: there is no prompt, one is empty, or a setting is out of range.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        max_length: int = 512,
        stop_sequences: Sequence[str] | None = None,
        temperature: float = 1.0,
    ):
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
            raise ConfigError(f"max_length={max_length!r}: expected a whole number of at least 1.")
        if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
            raise ConfigError(f"temperature={temperature!r}: expected a number above 0.")
        self.chat = ChatFormat(tokenizer)
        self.cycle = PromptCycle(prompts)
        self.max_length = max_length
        self.stop_sequences = checked_stop_sequences(stop_sequences)
        self.temperature = temperature
        self.prompt = ""
        self.generated = ""
        self.running = False
        self._prompt_index: int | None = None
        self._prompt_ids: list[int] = []
        self._response_ids: list[int] = []

    @property
    def steps(self) -> int:
        """Tokens generated in this episode, end token included."""
        return len(self._response_ids)

    def start(self, prompt: str | None = None) -> Observation:
        """Begin with the next prompt, or with a given one, which leaves the turn where it is.

        Raises:
            DataError: the given prompt is no text or empty, or see ChatFormat.encode_prompt.
        """
        if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
            raise DataError(f"prompt: found {prompt!r}, expected a text that is not empty. Leave it out for the next.")
        self._prompt_index, self.prompt = self.cycle.next() if prompt is None else (None, prompt)
        self._prompt_ids = self.chat.encode_prompt(self.prompt)
        self._response_ids = []
        self.generated = ""
        self.running = True
        return self.observation()

    def append(self, action: Tensor | int) -> bool:
        """Add a token; whether the episode has ended. The first token of all begins the first episode by itself.

        Raises:
            RLCoreError: the last episode has ended.
            DataError: the action is not one token of the tokenizer.
        """
        if not self._prompt_ids:
            self.start()
        require_running(self.running)
        self._response_ids.append(one_token(action, len(self.chat.tokenizer)))
        self.generated, stopped = self.before_stop(self.chat.decode_response(self._response_ids))
        ended = self._response_ids[-1] == self.chat.end_id
        self.running = not (stopped or ended or self.steps >= self.max_length)
        return not self.running

    def before_stop(self, text: str) -> tuple[str, bool]:
        """The text in front of the first stop string, and whether there is one.

        Raises:
            DataError: see formatting.require_text.
        """
        require_text(text)
        position = find_stop(text, self.stop_sequences)
        return text[:position], position is not None

    def observation(self) -> Observation:
        """The newest max_length tokens of prompt and response.

        The metadata holds `prompt_idx` (None for a prompt that was given), `steps` and `temperature`.
        """
        metadata = {"prompt_idx": self._prompt_index, "steps": self.steps, "temperature": self.temperature}
        return observe([*self._prompt_ids, *self._response_ids], self.max_length, self.prompt, metadata)

    def render(self) -> str:
        """Prompt, generated text and number of steps, one line each."""
        return f"Prompt: {self.prompt}\nGenerated: {self.generated}\nSteps: {self.steps}"


def observe(ids: list[int], max_length: int, prompt: str, metadata: Mapping[str, Any]) -> Observation:
    """The last max_length ids as an observation."""
    input_ids = torch.tensor([ids[-max_length:]], dtype=torch.int64)
    return Observation(input_ids, torch.ones_like(input_ids), prompt, dict(metadata))


def require_running(running: bool) -> None:
    """Let a step in a running episode pass.

    Raises:
        RLCoreError: there is none.
    """
    if not running:
        raise RLCoreError("Found a step without a running episode: it has ended or never begun. Call reset() first.")


def one_token(action: Tensor | int, vocabulary: int) -> int:
    """The token id of an action: an int, or an integer tensor with one element.

    Args:
        action: what a policy did.
        vocabulary: number of tokens.

    Raises:
        DataError: anything else, or see token_ids.
    """
    ids = token_ids(action, vocabulary)
    if len(ids) != 1:
        raise DataError(f"Found an action of {len(ids)} tokens, expected one token id. Step once for each token.")
    return ids[0]


def token_ids(action: Tensor | Sequence[int] | int, vocabulary: int) -> list[int]:
    """The token ids of an action: an int, a list of ints, or an integer tensor of one row.

    Raises:
        DataError: no integers, one that is no token of the vocabulary, or several rows.
    """
    row = _plain(action)
    while isinstance(row, list) and len(row) == 1 and isinstance(row[0], list):
        row = row[0]
    ids = [_plain(token) for token in row] if isinstance(row, list | tuple) else [row]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise DataError(f"Found {token!r} in an action, expected one row of token ids, which are whole numbers.")
        if not 0 <= token < vocabulary:
            raise DataError(f"Found the token id {token}, expected ids of the tokenizer, 0 to {vocabulary - 1}.")
    return ids


def _plain(value: Any) -> Any:
    """A tensor or an array as numbers and lists; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
