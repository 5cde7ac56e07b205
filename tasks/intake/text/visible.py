"""Text of unknown origin as HTML: nothing in it is markup, and what nobody would see is spelled out."""

import re
import unicodedata

from markupsafe import Markup, escape

from tasks.intake.text.invisible import BIDI_CONTROL, ZERO_WIDTH

_LINE_ENDS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\u2028": "LS", "\u2029": "PS", "\x85": "NEL"}
_HIDDEN = re.compile(
    f"{ZERO_WIDTH.pattern}|{BIDI_CONTROL.pattern}|"
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200e\u200f\u2028\u2029\u3164\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\ue000-\uf8ff]"
)


def visible(text: object) -> Markup:
    """A text as HTML. Characters that are not seen, or that turn the text around, show as their code point."""
    parts: list[Markup] = []
    end = 0
    value = str(text)
    for found in _HIDDEN.finditer(value):
        parts += [escape(value[end : found.start()]), _mark(found[0])]
        end = found.end()
    return Markup("").join([*parts, escape(value[end:])])


def _mark(character: str) -> Markup:
    code = f"U+{ord(character):04X}"
    name = unicodedata.name(character, "")
    title = f"{code} {name}".strip()
    return Markup('<b class="mark" title="{}">{}</b>').format(title, _LINE_ENDS.get(character, code))
