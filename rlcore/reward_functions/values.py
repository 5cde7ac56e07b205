"""Numbers as people and models write them, as exact fractions.

Read are integers, decimals, thousands separators, fractions, mixed numbers, powers of ten, percentages, currencies and
units. Operands of a calculation are not values: "2 + 2" states no answer. Every pattern runs in linear time.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS, MAX_EXPONENT = 400, 400
"""Longer numbers and larger powers of ten are no answers; converting them could take minutes."""

# One spelling for what LaTeX and Unicode write in several ways.
_SPELLINGS = [
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (re.compile(r"(?<=[0-9])\\,(?=[0-9]{3})|\{,\}"), ","),
    (re.compile(r"[\u2010\u2011\u2212]"), "-"),
    (re.compile(r"\u00d7"), r"\\times "),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:left|right)\b"), ""),
    (re.compile(r"\^ ?(?:\\circ|\{ ?\\circ ?\})|\\degree\b"), "°"),
    (re.compile(r"\\(?:text|textbf|mbox|mathrm) ?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"(?<!\\)\\([$%#&])"), r"\1"),
    (re.compile(r"(?<!\\)\\[,;: ()\[\]]|[~\t\u00a0\u2009\u202f]"), " "),
    (re.compile(r" {2,}"), " "),
]

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++"
_PART = r"(?:\{{ ?(?P<{name}>-?(?:{number})) ?\}}|(?P<{name}_digit>[0-9]))"
_TOP, _BOTTOM = (_PART.format(name=name, number=_NUMBER) for name in ("top", "bottom"))
_POWER_OF_TEN = (
    r"[eE](?P<e>[-+]?[0-9]++)(?![0-9A-Za-z])"
    r"| ?\\(?:times|cdot) ?10 ?\^ ?(?:\{(?P<power>-?[0-9]++)\}|(?P<power_digit>[0-9]))"
)
_VALUE = re.compile(
    r"(?P<sign>[-+]?)(?:[$€£] ?)?(?P<inner_sign>-?)(?:"
    rf"(?:(?P<whole>[0-9]++) ?)?\\frac ?{_TOP} ?{_BOTTOM}"
    r"|(?:(?P<whole_plain>[0-9]++) )?(?P<top_plain>[0-9]++) ?/ ?(?P<bottom_plain>[0-9]++)"
    rf"|(?P<number>{_NUMBER})(?:{_POWER_OF_TEN})?"
    r")(?P<percent> ?(?:%|percent\b))?"
)
# Words of one or two letters behind a number are variables unless they are in these lists.
_UNIT_WORD = (
    r"(?:[mgshlLCFKNJWVA]|cm|mm|km|kg|mg|lb|oz|ft|in|yd|mi|hr|ml|ms|am|pm|st|nd|rd|th|[A-Za-z]{3,}+)(?![A-Za-z])"
)
_UNIT = re.compile(rf" ?(?:° ?)?(?:(?!sqrt){_UNIT_WORD}[A-Za-z. /]*)?(?:\^\{{?[23]\}}?)? ?\.? ?")

# Before a number: part of a name, of a power, of the argument of a command, or of a list without blanks.
_NAME_BEFORE = re.compile(r"(?:[A-Za-z_^\\{]|[0-9][.,:]?)$")
_OPERAND = r"(?:[0-9)}°%]|(?<![A-Za-z])[A-Za-z])"
_OPERAND_BEFORE = re.compile(rf"{_OPERAND} ?(?:[-+*/÷·x]|\\(?:times|cdot|div)) ?$")
_SIGN_IS_OPERATOR = re.compile(rf"(?:[A-Za-z]|{_OPERAND} ?)$")
_OPERAND_AFTER = re.compile(
    r" ?(?:[-+*/÷·] ?(?:[0-9(\\]|[.$][0-9]|[A-Za-z](?![A-Za-z]))|\\(?:times|cdot|div|pi|sqrt)|[π√^_!])|[.,:][0-9]"
)
_VARIABLE_AFTER = re.compile(rf"(?!{_UNIT_WORD})[A-Za-z]| (?:[xyz]|pi|sqrt)\b")


@dataclass(frozen=True)
class Value:
    """A number, and whether it was written as a percentage; 5 % has the number 5."""

    number: Fraction
    percent: bool = False

    def same(self, other: "Value") -> bool:
        """Exact equality. Where one of the two is a percentage, 50 % equals 50 as well as 0.5."""
        return self.number == other.number or self._share() == other._share()

    def _share(self) -> Fraction:
        return self.number / 100 if self.percent else self.number


def plain_spelling(text: str) -> str:
    r"""The text with one spelling for each sign and fraction, without the commands of LaTeX that only set blanks.

    The content of \text{} and its like stands for the command.
    """
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def whole_value(text: str) -> Value | None:
    """The value of a text in plain spelling that is one number, at most with a currency or a unit; else None."""
    match = _VALUE.match(text)
    if match is None or not _UNIT.fullmatch(text, match.end()):
        return None
    return _value_of(match)


def first_value(text: str) -> Value | None:
    """The first number in a text of plain spelling that is no part of a name or a calculation; None without one."""
    match = next(_standing_alone(text), None)
    return None if match is None else _value_of(match)


def last_value(text: str) -> Value | None:
    """The last such number; None without one."""
    last = deque(_standing_alone(text), maxlen=1)
    return _value_of(last[0]) if last else None


def _standing_alone(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _VALUE.finditer(text) if _stands_alone(match))


def _stands_alone(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 12) : match.start()]
    after = match.string[match.end() : match.end() + 12]
    if _OPERAND_AFTER.match(after) or _VARIABLE_AFTER.match(after):
        return False
    if match["sign"]:
        return not _SIGN_IS_OPERATOR.search(before)
    return not (_NAME_BEFORE.search(before) or _OPERAND_BEFORE.search(before))


def _value_of(match: re.Match[str]) -> Value | None:
    written = {name: part for name, part in match.groupdict().items() if part}
    if max(map(len, written.values())) > MAX_DIGITS:
        return None
    exponent = int(_first(written, "e", "power", "power_digit", default="0"))
    whole = _fraction(_first(written, "whole", "whole_plain", default="0"))
    top = _fraction(_first(written, "top", "top_digit", "top_plain", "number", default="0"))
    bottom = _fraction(_first(written, "bottom", "bottom_digit", "bottom_plain", default="1"))
    if bottom == 0 or abs(exponent) > MAX_EXPONENT:
        return None
    number = (whole + top / bottom) * Fraction(10) ** exponent
    negative = (match["sign"] == "-") != (match["inner_sign"] == "-")
    return Value(-number if negative else number, "percent" in written)


def _first(written: dict[str, str], *names: str, default: str) -> str:
    return next((written[name] for name in names if name in written), default)


def _fraction(written: str) -> Fraction:
    return Fraction(written.replace(",", ""))
