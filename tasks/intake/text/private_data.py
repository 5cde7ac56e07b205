"""Secrets and personal data in texts: finding them, and a mark in their place.

Each pattern has a word or sign that stands in every match, so that most texts cost no more than a look for it.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Match(NamedTuple):
    """A place in a text."""

    start: int
    end: int
    name: str
    """What stands there."""


class Pattern(NamedTuple):
    """One sort of private data."""

    name: str
    signs: tuple[str, ...]
    """One of these stands in every match; where there is none, a long number does."""
    expression: re.Pattern[str]
    is_real: Callable[[str], bool] = bool
    """Whether a match is what it looks like."""


def _luhn(text: str) -> bool:
    """The checksum of payment cards (ISO/IEC 7812-1)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _iban(text: str) -> bool:
    """The checksum of bank accounts (ISO 13616)."""
    signs = text.replace(" ", "")
    moved = signs[4:] + signs[:4]
    return 15 <= len(signs) <= 34 and int("".join(str(int(sign, 36)) for sign in moved)) % 97 == 1


def _public_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


SECRETS = (
    Pattern(
        "private key", ("-----BEGIN",),
        re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[^-]+-----END [A-Z0-9 ]+-----)?"),
    ),
    Pattern("AWS key", ("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b")),
    Pattern(
        "GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})"),
    ),
    Pattern("GitLab token", ("glpat-",), re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}")),
    Pattern("Slack token", ("xox",), re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}")),
    Pattern("Google key", ("AIza",), re.compile(r"\bAIza[A-Za-z0-9_-]{35}")),
    Pattern("Stripe key", ("k_live_",), re.compile(r"\b[rs]k_live_[A-Za-z0-9]{16,}")),
    Pattern("API key", ("sk-",), re.compile(r"\bsk-(?:[a-z0-9]+-)*[A-Za-z0-9_-]*[A-Za-z0-9]{20,}")),
    Pattern("Hugging Face token", ("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    Pattern("npm token", ("npm_",), re.compile(r"\bnpm_[A-Za-z0-9]{36}\b")),
    Pattern("PyPI token", ("pypi-",), re.compile(r"\bpypi-[A-Za-z0-9_-]{50,}")),
    Pattern("JSON web token", ("eyJ",), re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")),
    Pattern("password in a URL", ("://",), re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]{3,}@[^\s/]+")),
)  # fmt: skip

PERSONAL = (
    Pattern(
        "e-mail address", ("@",),
        re.compile(r"(?<![\w.:/-])[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b"),
        lambda text: not text.lower().endswith(("@example.com", "@example.org", "@example.net")),
    ),
    Pattern("account number", (), re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _iban),
    Pattern(
        "card number", (),
        re.compile(
            r"(?<![\d.-])[2-6]\d{3}(?:[ -]?\d{4}){2}(?:[ -]?\d{1,7})(?![\d.-]\d|\d)"
            r"|(?<![\d.-])3[47]\d{2}[ -]?\d{6}[ -]?\d{5}(?!\d)"
        ),
        _luhn,
    ),
    Pattern(
        "phone number", (),
        re.compile(
            r"(?<![\w+])\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}(?!\d)"
            r"|(?<![\w.-])(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4}(?![\w-])"
        ),
    ),
    Pattern("IP address", (".",), re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)"), _public_address),
)  # fmt: skip

_NUMBER = re.compile(r"\d[\d .()-]{5,}\d")
"""Stands in every number that says who somebody is."""


def secrets(text: str) -> Iterator[Match]:
    """Keys, tokens and passwords in a text."""
    return _matches(SECRETS, text)


def personal_data(text: str) -> Iterator[Match]:
    """Addresses, numbers and accounts of people in a text."""
    return _matches(PERSONAL, text) if may_hold_personal_data(text) else iter(())


def may_hold_personal_data(text: str) -> bool:
    """Whether a closer look is worth while: what is no address for e-mail has a long number in it."""
    return "@" in text or _NUMBER.search(text) is not None


def redacted(text: str) -> str:
    """The text with a mark in place of everything private."""
    return without(text, [*secrets(text), *personal_data(text)])


def without(text: str, matches: Iterable[Match]) -> str:
    """The text with a mark in place of each match. Of overlapping ones the first counts."""
    parts: list[str] = []
    place = 0
    for match in sorted(matches):
        if match.start >= place:
            parts += [text[place : match.start], f"[{match.name}]"]
            place = match.end
    return "".join([*parts, text[place:]])


def _matches(patterns: tuple[Pattern, ...], text: str) -> Iterator[Match]:
    has_number = any(not pattern.signs for pattern in patterns) and _NUMBER.search(text) is not None
    for pattern in patterns:
        if not (any(sign in text for sign in pattern.signs) if pattern.signs else has_number):
            continue
        for match in pattern.expression.finditer(text):
            if pattern.is_real(match[0]):
                yield Match(match.start(), match.end(), pattern.name)
