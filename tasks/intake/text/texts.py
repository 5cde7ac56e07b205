"""Rules for what stands in a text, and the repairs that some of them have.

A rule first looks at many texts at once, so that a fault that is nowhere costs next to nothing.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.intake.text.invisible import BIDI_CONTROL, ZERO_WIDTH
from tasks.intake.text.private_data import Match, may_hold_personal_data, personal_data, secrets, without


@dataclass(frozen=True)
class TextRule:
    """A rule for one text.

    Attributes:
        finds: the places where a text breaks it.
        suspects: whether one of many texts, joined by line feeds, may break it.
        mends: the text without the fault, or None where there is no repair.
        is_foreign: whether no ASCII text can break it.
    """

    finds: Callable[[str], Iterator[Match]]
    suspects: Callable[[str], bool]
    mends: Callable[[str], str] | None = None
    is_foreign: bool = False


@dataclass(frozen=True)
class Found:
    """A text that breaks a rule."""

    position: int
    """Of the text among those that were looked at."""
    rule: str
    match: Match
    """The first place."""


# Text of UTF-8 bytes that were once read as Windows-1252: each of the two halves of the pattern is rare in real text.
_MISREAD = re.compile("[\u00c2\u00c3][\u0080-\u00bf\u0152-\u0178\u2013-\u2122]|\u00e2[\u0080\u20ac]|\u00ef\u00bb\u00bf")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PLAIN_BYTES = bytes(code for code in range(256) if not _CONTROL.match(chr(code)))
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL_TOKEN = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|begin_of_text|end_of_text|start_header_id|end_header_id|eot_id|eom_id"
    r"|system|user|assistant|end|startoftext|endofprompt|fim_\w{1,8}|channel|message|return|start)\|>"
    r"|<(?:/s|s|unk|pad|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>"
    r"|\[(?:CLS|SEP|MASK|PAD)\]|<\uff5c[^<>]{1,40}\uff5c>"
)


def text_rules(special_tokens: Collection[str] = ()) -> Mapping[str, TextRule]:
    """The rules by name, in the order in which repairs are made.

    Args:
        special_tokens: of the tokenizer, besides those that are known from chat templates.
    """
    special = _special_tokens(special_tokens)
    return {
        "lone_surrogate": _pattern(_LONE_SURROGATE, "", is_foreign=True),
        "mojibake": TextRule(_misread, _may_be_misread, _decoded_again, is_foreign=True),
        "control_character": TextRule(
            lambda text: _places(_CONTROL, text), _has_control, lambda text: _CONTROL.sub("", text)
        ),
        "carriage_return": TextRule(
            _carriage_returns,
            lambda texts: "\r" in texts,
            lambda text: text.replace("\r\n", "\n").replace("\r", "\n"),
        ),
        "bidi_control": _pattern(BIDI_CONTROL, "", is_foreign=True),
        "zero_width": _pattern(ZERO_WIDTH, "", is_foreign=True),
        "replacement_character": TextRule(
            lambda text: _sign("\ufffd", text), lambda texts: "\ufffd" in texts, is_foreign=True
        ),
        "special_token": TextRule(
            lambda text: _named_places(special, text),
            lambda texts: special.search(texts) is not None,
            lambda text: _all_out(special, text),
        ),
        "secret": TextRule(secrets, lambda texts: any(secrets(texts)), lambda text: without(text, secrets(text))),
        "personal_data": TextRule(
            personal_data, may_hold_personal_data, lambda text: without(text, personal_data(text))
        ),
    }


def found_in(texts: Sequence[str], rules: Mapping[str, TextRule]) -> Iterator[Found]:
    """The texts that break rules, each text and rule once, with the first place."""
    foreign = [position for position, text in enumerate(texts) if not text.isascii()]
    joined = "\n".join(texts)
    joined_foreign = "\n".join(texts[position] for position in foreign)
    for name, rule in rules.items():
        if not rule.suspects(joined_foreign if rule.is_foreign else joined):
            continue
        for position in foreign if rule.is_foreign else range(len(texts)):
            if (match := next(rule.finds(texts[position]), None)) is not None:
                yield Found(position, name, match)


def _pattern(pattern: re.Pattern[str], replacement: str, *, is_foreign: bool) -> TextRule:
    return TextRule(
        lambda text: _named_places(pattern, text),
        lambda texts: pattern.search(texts) is not None,
        lambda text: pattern.sub(replacement, text),
        is_foreign,
    )


def _places(pattern: re.Pattern[str], text: str) -> Iterator[Match]:
    return (Match(match.start(), match.end(), _code(match[0])) for match in pattern.finditer(text))


def _named_places(pattern: re.Pattern[str], text: str) -> Iterator[Match]:
    for match in pattern.finditer(text):
        yield Match(match.start(), match.end(), match[0] if len(match[0]) > 1 else _code(match[0]))


def _code(sign: str) -> str:
    return f"U+{ord(sign):04X}"


def _sign(sign: str, text: str) -> Iterator[Match]:
    if (place := text.find(sign)) >= 0:
        yield Match(place, place + 1, _code(sign))


def _carriage_returns(text: str) -> Iterator[Match]:
    if (place := text.find("\r")) >= 0:
        yield Match(place, place + 1, "CRLF" if text[place : place + 2] == "\r\n" else "CR")


def _has_control(texts: str) -> bool:
    # Bytes of UTF-8 beyond ASCII are above 127.
    return bool(texts.encode("utf-8", "surrogatepass").translate(None, _PLAIN_BYTES))


def _may_be_misread(texts: str) -> bool:
    return _MISREAD.search(texts) is not None or _badness().search(texts) is not None


def _misread(text: str) -> Iterator[Match]:
    match = _MISREAD.search(text) or _badness().search(text)
    if match is not None:
        yield Match(match.start(), match.end(), repr(match[0]))


def _badness() -> re.Pattern[str]:
    # Loaded for texts beyond ASCII alone.
    from ftfy.badness import BADNESS_RE

    return BADNESS_RE


def _decoded_again(text: str) -> str:
    from ftfy import fix_encoding

    return str(fix_encoding(text))


def _special_tokens(names: Collection[str]) -> re.Pattern[str]:
    # A token of one letter is a letter.
    own = [re.escape(name) for name in sorted(names, key=len, reverse=True) if len(name) > 2]
    return re.compile("|".join([_SPECIAL_TOKEN.pattern, *own]))


def _all_out(pattern: re.Pattern[str], text: str) -> str:
    """Take matches out until none is left: what stood around one can make another."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text
