"""Text to tokens and back, the same way for supervised fine-tuning, reward model, policy and evaluation.

Prompt and response are encoded apart and their ids joined, so no token spans the border and the response mask is exact.
"""

import logging
import os.path
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rlcore.errors import ConfigError, DataError

Prompt = str | list[dict[str, str]]
"""Text, or chat messages with `role` and `content`."""

# Text in front of a response while it is encoded, so that a tokenizer that marks the start of a text marks this one.
# The first that does not merge with the response is taken.
_ANCHORS = ("\n", "0", ";", "a")
_START_MARKS = ("▁", "Ġ")
# Stands for what a policy said in its turn.
_TURN = "turn"
# Half of a character of two UTF-16 units; whole ones are one character in Python.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ID_LIMIT = 2**32
"""Tokenizers count in 32 bits."""

logger = logging.getLogger(__name__)


class ChatFormat:
    """How a tokenizer writes one prompt and one response.

    A padding token equal to the end token is allowed: every mask in this library comes from lengths, not from ids.

    Args:
        tokenizer: the tokenizer.
        tools: function schemas that the chat template puts into every prompt.

    Attributes:
        tokenizer, tools: as passed.
        end_id: token that ends a response: the end-of-sequence token, or the separator of an encoder that has none.
        pad_id: token that fills rows.
        bos_id: token that begins a text: the beginning-of-sequence token, or the class token of an encoder; or None.

    Raises:
        ConfigError: the tokenizer has no end token or no padding token; there are tools, but no chat template that
            shows them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()):
        self.tokenizer = tokenizer
        self.tools: list[Any] = [dict(tool) for tool in tools]
        end_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        if end_id is None:
            raise ConfigError("The tokenizer has no end token. Set `eos_token` in its tokenizer_config.json.")
        if tokenizer.pad_token_id is None:
            raise ConfigError(
                "The tokenizer has no padding token. Set `pad_token` in its tokenizer_config.json; the end token does."
            )
        self.end_id: int = end_id
        self.pad_id: int = tokenizer.pad_token_id
        begins = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
        self.bos_id: int | None = begins
        tokens = tokenizer.convert_ids_to_tokens(self._plain_ids("a"))
        self._marks_start = any(token.startswith(_START_MARKS) for token in tokens[:1])
        if self.tools:
            self._require_shown_tools()

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids up to where the response begins: the chat template with its generation prompt, else the bare text.

        A BOS token comes once, from whoever writes it; an end token that the tokenizer appends to texts is dropped. A
        system message that the template refuses or ignores is put in front of the first question, with one warning.

        Raises:
            DataError: the template rejects the messages, the last of them is the assistant's, or there is no template;
                a message has no role or no content that is text; see also require_text.
        """
        if self.tokenizer.chat_template is None:
            return self._prompt_ids(prompt)
        messages = self._with_system_shown(_messages(prompt))
        if not messages or messages[-1].get("role") == "assistant":
            raise DataError(f"Found the messages {messages!r}. Expected a prompt whose last message is the user's.")
        try:
            ids = self.tokenizer.apply_chat_template(
                messages, tools=self.tools or None, add_generation_prompt=True, return_dict=False
            )
        except TemplateError as error:
            raise DataError(
                f"The chat template rejects {messages!r}: {error} Change the messages or the template."
            ) from error
        return cast(list[int], ids)

    def encode_tool_results(self, prompt: Prompt, results: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids between the end token of a turn that called tools and the turn that reads their results.

        They are what the chat template writes there: the results and a generation prompt. The turn itself is not
        encoded again, so its ids stay as they were sampled.

        Args:
            prompt: text or messages that the conversation began with.
            results: messages with the role `tool`, a `name` and a `content`.

        Raises:
            ConfigError: the template rejects the results, or writes the turn in front of them otherwise than it was
                sampled.
        """
        return self._ids_behind(self._text_behind_turn(self._with_system_shown(_messages(prompt)), results))

    def require_tool_results(self) -> None:
        """Let a chat template pass that can go on with a tool's result behind a turn.

        Raises:
            ConfigError: there is no template, or see encode_tool_results, or it does not show what a tool answered.
        """
        if self.tokenizer.chat_template is None:
            raise ConfigError("The tokenizer has no chat template to write a tool's result. Give it one.")
        texts = {
            self._text_behind_turn(_messages(_TURN), [{"role": "tool", "name": "name", "content": content}])
            for content in ("1", "2")
        }
        if len(texts) == 1:
            raise ConfigError(
                "The chat template writes the same whatever a tool answered. Use a template that knows the role `tool`."
            )

    def encode_text(self, text: str) -> list[int]:
        """Ids of a whole text as the tokenizer writes it, without the chat template.

        Raises:
            DataError: see require_text.
        """
        require_text(text)
        return cast(list[int], self.tokenizer(text)["input_ids"])

    def encode_response(self, text: str) -> list[int]:
        """Ids of a response as they follow a prompt: no BOS, no end token, no blank that is not in the text.

        Raises:
            DataError: see require_text.
        """
        ids = self._ids_behind(text)
        while ids and ids[-1] == self.end_id:
            ids.pop()
        return ids

    def encode_pair(
        self, prompt: Prompt, response: str, *, max_length: int, max_prompt_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Prompt ids and response ids, together at most max_length; the response ends with one end token unless cut.

        A pair that fits is not cut. Otherwise the prompt loses its beginning (a BOS token stays), though it keeps
        max_prompt_length tokens; what is still too long is cut from the end of the response. At least one token of
        each stays.

        Args:
            prompt: text or messages.
            response: text.
            max_length: tokens of both together.
            max_prompt_length: tokens that the prompt keeps at the response's expense; half of max_length by default.
                1 cuts a response only where it alone is too long.

        Raises:
            ConfigError: max_prompt_length is not within 1 .. max_length - 1.
            DataError: see encode_prompt and require_text.
        """
        kept = max_length // 2 if max_prompt_length is None else max_prompt_length
        if not 1 <= kept < max_length:
            raise ConfigError(
                f"max_prompt_length={kept}, max_length={max_length}: expected 1 <= max_prompt_length < max_length, "
                "so that prompt and response both keep a token."
            )
        response_ids = [*self.encode_response(response), self.end_id]
        prompt_ids = self.cut_prompt(self.encode_prompt(prompt), max(kept, max_length - len(response_ids)))
        return prompt_ids, response_ids[: max_length - len(prompt_ids)]

    def cut_prompt(self, prompt_ids: list[int], limit: int) -> list[int]:
        """The last `limit` ids of a longer prompt, the first of them BOS where the prompt began with it."""
        if len(prompt_ids) <= limit:
            return prompt_ids
        if limit > 1 and prompt_ids[0] == self.bos_id:
            return [prompt_ids[0], *prompt_ids[len(prompt_ids) - limit + 1 :]]
        return prompt_ids[len(prompt_ids) - limit :]

    def decode_response(self, ids: Sequence[int]) -> str:
        """Text of response ids. Only end, padding and BOS tokens are dropped; other special tokens stay as text.

        Raises:
            DataError: an id is negative or has more than 32 bits.
        """
        for token in ids:
            if not 0 <= int(token) < _ID_LIMIT:
                raise DataError(f"Found the token id {int(token)}, expected ids of the tokenizer, from 0 on.")
        dropped = (self.end_id, self.pad_id, self.bos_id)
        kept = [int(token) for token in ids if int(token) not in dropped]
        if not self._marks_start:
            return self._decode(kept)
        # Decoders of such tokenizers strip the first blank, which here belongs to the response.
        anchor = self._plain_ids(_ANCHORS[-1])
        return self._decode(anchor + kept)[len(self._decode(anchor)) :]

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, list):
            raise DataError(
                f"Found messages, {prompt!r}, but the tokenizer has no chat template. Pass text, or give it a template."
            )
        ids = self.encode_text(prompt)
        if len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]
        if not ids:
            raise DataError("Found a prompt without a token. Expected text, as the tokenizer writes no BOS token.")
        return ids

    def _with_system_shown(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Messages that the template shows whole: a system text moves into the first question where it has to."""
        roles = [message.get("role") for message in messages[:2]]
        if roles != ["system", "user"] or self._shows_system:
            return messages
        system, question, *rest = messages
        return [{**question, "content": f"{system['content']}\n\n{question['content']}"}, *rest]

    @cached_property
    def _shows_system(self) -> bool:
        """Whether the template writes a system message; asked once, and said once where it does not."""
        question = {"role": "user", "content": _TURN}
        settings: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
        try:
            texts = {
                self.tokenizer.apply_chat_template([{"role": "system", "content": content}, question], **settings)
                for content in ("1", "2")
            }
        except TemplateError:
            texts = set()
        if len(texts) == 2:
            return True
        logger.warning(
            "The chat template knows no system role: system messages are put in front of the first question instead."
        )
        return False

    def _require_shown_tools(self) -> None:
        if self.tokenizer.chat_template is None:
            raise ConfigError(
                f"Found {len(self.tools)} tools and a tokenizer without a chat template, which would show them to the "
                "policy. Give it a template, or offer no tools."
            )
        if self._rendered(_messages(_TURN)) == self._rendered(_messages(_TURN), tools=None):
            raise ConfigError(
                f"The chat template ignores its tools: the policy would not know of these {len(self.tools)}. "
                "Use a template that writes `tools` into the prompt, or offer none."
            )

    def _text_behind_turn(self, messages: list[dict[str, str]], results: Sequence[Mapping[str, str]]) -> str:
        """What follows the end token of an assistant's turn in front of its next one."""
        sampled = f"{self._rendered(messages)}{_TURN}{self.tokenizer.convert_ids_to_tokens(self.end_id)}"
        whole = self._rendered([*messages, {"role": "assistant", "content": _TURN}, *map(dict, results)])
        if not whole.startswith(sampled):
            same = len(os.path.commonprefix([whole, sampled]))
            raise ConfigError(
                "The chat template writes a turn that a tool's result follows otherwise than it was sampled: found "
                f"{whole[same : same + 40]!r}, expected {sampled[same : same + 40]!r} behind {whole[:same][-40:]!r}. "
                "Use a template that leaves earlier turns as they are, and a tokenizer whose end token ends a turn."
            )
        return whole[len(sampled) :]

    def _rendered(self, messages: list[dict[str, str]], **changes: Any) -> str:
        """The text of a conversation with its generation prompt."""
        settings = {"tools": self.tools or None, "add_generation_prompt": True, "tokenize": False, **changes}
        try:
            return cast(str, self.tokenizer.apply_chat_template(messages, **settings))
        except TemplateError as error:
            raise ConfigError(
                f"The chat template rejects {messages!r}: {error} Use one that knows the roles user, assistant, tool."
            ) from error

    def _ids_behind(self, text: str) -> list[int]:
        """Ids of a text in front of which other ids stand."""
        require_text(text)
        return self._continuation_ids(text) if self._marks_start else self._plain_ids(text)

    def _plain_ids(self, text: str) -> list[int]:
        return cast(list[int], self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _continuation_ids(self, text: str) -> list[int]:
        for anchor in _ANCHORS:
            anchor_ids, ids = self._plain_ids(anchor), self._plain_ids(anchor + text)
            if ids[: len(anchor_ids)] == anchor_ids:
                return ids[len(anchor_ids) :]
        raise DataError(
            f"The tokenizer cannot encode {text!r} apart from the prompt: it merges with whatever precedes it."
        )

    def _decode(self, ids: list[int]) -> str:
        return cast(str, self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def require_text(text: object) -> None:
    """Let a text pass that can be written as UTF-8, as a tokenizer reads it.

    Raises:
        DataError: it is no text, or holds a lone surrogate: half of a character, as cutting JSON leaves it.
    """
    if not isinstance(text, str):
        raise DataError(f"Found {text!r}, expected text. Drop or mend it.")
    lone = _LONE_SURROGATE.search(text)
    if lone is not None:
        raise DataError(
            f"Found the lone surrogate U+{ord(lone[0]):04X} at position {lone.start()}, expected valid Unicode. "
            "Drop or mend that text."
        )


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    """A prompt as chat messages, each of them with a role and a content that are text."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list):
        raise DataError(f"Found {prompt!r} as a prompt, expected text or chat messages. Drop or mend it.")
    for index, message in enumerate(messages):
        if not (isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))):
            raise DataError(
                f"Message {index}: found {message!r}, expected a `role` and a `content`, both text. "
                "Drop or mend that prompt."
            )
        require_text(message["content"])
    return messages
