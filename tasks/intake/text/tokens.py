"""Lengths in tokens, as the trainers count them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from rlcore.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rlcore.formatting import ChatFormat

END_TOKENS = 1
"""The end token behind a response."""
BATCH = 8_192
"""Texts that are encoded at once: enough for all cores, little enough for memory."""


class TokenCounter:
    """Counts tokens with the tokenizer of a model folder.

    A folder without a chat template is read by the tokenizer alone, which loads no model library.

    Attributes:
        special_tokens: that the tokenizer has.
        frame: tokens that stand around the text of a prompt: of the chat template, or the one that begins a text.

    Raises:
        ConfigError: the folder holds no tokenizer.json.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        file = self.folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{file}: no such file. Name a model folder that holds a tokenizer.json.")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the tokenizer's own errors have no class of their own
            raise ConfigError(f"{file}: found no tokenizer ({error}). Copy the folder again.") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special_tokens = sorted({token.content for token in added if token.special})
        self._format: ChatFormat | None = None
        self.frame = self._frame()

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens around it."""
        found: list[int] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            found += map(len, self._tokenizer.encode_batch_fast(batch, add_special_tokens=False))
        return found

    def of_messages(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of a prompt of several messages, as the chat template writes it.

        Raises:
            DataError: there is no chat template, or it rejects the messages.
        """
        if self._format is None:
            raise DataError(
                f"Found messages, but {self.folder} has no chat template. Pass text, or give it a template."
            )
        return len(self._format.encode_prompt(messages))

    def _frame(self) -> int:
        if not self._has_template():
            whole, bare = (self._tokenizer.encode("a", add_special_tokens=added).ids for added in (True, False))
            # What a tokenizer appends to texts is dropped in front of a response.
            return len(whole) - len(bare) if whole[-len(bare) :] == bare else whole.index(bare[0])
        from rlcore.formatting import ChatFormat
        from rlcore.models.loading import load_tokenizer

        self._format = ChatFormat(load_tokenizer(self.folder))
        return len(self._format.encode_prompt("a")) - self.counts(["a"])[0]

    def _has_template(self) -> bool:
        if (self.folder / "chat_template.jinja").is_file():
            return True
        config = self.folder / "tokenizer_config.json"
        return config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")
