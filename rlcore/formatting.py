"""Text to tokens and back, the same way for supervised fine-tuning, reward model, policy and evaluation.

Prompt and response are encoded apart and their ids joined, so no token spans the border and the response mask is exact.
"""

import os.path
from collections.abc import Mapping, Sequence
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

        A BOS token comes once, from whoever writes it; an end token that the tokenizer appends to texts is dropped.

        Raises:
            DataError: the template rejects the messages, the last of them is the assistant's, or there is no template.
        """
        if self.tokenizer.chat_template is None:
            return self._encode_text(prompt)
        messages = _messages(prompt)
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
        return self._ids_behind(self._text_behind_turn(_messages(prompt), results))

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

    def encode_response(self, text: str) -> list[int]:
        """Ids of a response as they follow a prompt: no BOS, no end token, no blank that is not in the text."""
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
            DataError: see encode_prompt.
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
        """Text of response ids. Only end, padding and BOS tokens are dropped; other special tokens stay as text."""
        dropped = (self.end_id, self.pad_id, self.bos_id)
        kept = [int(token) for token in ids if int(token) not in dropped]
        if not self._marks_start:
            return self._decode(kept)
        # Decoders of such tokenizers strip the first blank, which here belongs to the response.
        anchor = self._plain_ids(_ANCHORS[-1])
        return self._decode(anchor + kept)[len(self._decode(anchor)) :]

    def _encode_text(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            raise DataError(
                f"Found messages, {prompt!r}, but the tokenizer has no chat template. Pass text, or give it a template."
            )
        ids = cast(list[int], self.tokenizer(prompt)["input_ids"])
        if len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]
        if not ids:
            raise DataError("Found a prompt without a token. Expected text, as the tokenizer writes no BOS token.")
        return ids

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


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
