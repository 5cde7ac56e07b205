"""Tokenizers of one token a letter, whose ids a test can write down."""

from tokenizers import Tokenizer, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

PAD, END, BEGIN = 0, 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def letter_tokenizer(*, merges: tuple[tuple[str, str], ...] = (), begin: bool = False) -> PreTrainedTokenizerFast:
    """One token a letter, `a` is 3; on request some merges, and `<b>` in front of a text."""
    tokens = ["<p>", "<e>", "<b>", *LETTERS, *(left + right for left, right in merges)]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, list(merges)))
    if begin:
        backend.post_processor = processors.TemplateProcessing(single="<b> $A", special_tokens=[("<b>", BEGIN)])
    special = {"pad_token": "<p>", "eos_token": "<e>", **({"bos_token": "<b>"} if begin else {})}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def ids(text: str) -> list[int]:
    return [3 + LETTERS.index(letter) for letter in text]
