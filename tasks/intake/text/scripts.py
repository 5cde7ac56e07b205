"""Which script a text is written in."""

import re

_LETTER = re.compile("[A-Za-z\u00aa-\u02af\u1e00-\u1eff]")
_BEYOND_LATIN = re.compile(
    "[\u0370-\u1dff\u1f00-\u1fff\u2c00-\u2dff\u2e80-\u2fff\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff66-\uffdf"
    "\U00010000-\U0001efff\U00020000-\U000323af]"
)
"""Letters of other scripts, and little else."""
_SCRIPT_LETTERS = 2_000
"""Letters at the beginning of a text that say its script."""
_SCRIPTS = (
    (0x250, "Latin"), (0x370, "other"), (0x400, "Greek"), (0x530, "Cyrillic"), (0x590, "Armenian"), (0x600, "Hebrew"),
    (0x780, "Arabic"), (0x900, "other"), (0x980, "Devanagari"), (0xA00, "Bengali"), (0xB80, "Indic"), (0xC00, "Tamil"),
    (0xE00, "Indic"), (0xE80, "Thai"), (0xF00, "Lao"), (0x1000, "Tibetan"), (0x10A0, "Burmese"), (0x1100, "Georgian"),
    (0x1200, "Hangul"), (0x1400, "Ethiopic"), (0x1780, "other"), (0x1800, "Khmer"), (0x1E00, "other"),
    (0x1F00, "Latin"), (0x2000, "Greek"), (0x2E80, "other"), (0x3040, "Han"), (0x3100, "Kana"), (0x3400, "Hangul"),
    (0xA000, "Han"), (0xAC00, "other"), (0xD7B0, "Hangul"), (0xF900, "other"), (0xFB00, "Han"), (0xFB50, "Latin"),
    (0xFE00, "Arabic"), (0xFF00, "Arabic"), (0xFF66, "Latin"), (0xFFA0, "Kana"), (0x20000, "other"), (0x323B0, "Han"),
)  # fmt: skip
"""End of a range of letters → their script. A range begins where the one before ends."""


def main_script(text: str) -> str | None:
    """The script that most letters of a text are of; None where there are no letters."""
    if _BEYOND_LATIN.search(text) is None:
        return "Latin" if _LETTER.search(text) else None
    counts: dict[str, int] = {}
    for letter in text[:_SCRIPT_LETTERS]:
        if letter.isalpha():
            script = _script(letter)
            counts[script] = counts.get(script, 0) + 1
    return max(counts, key=lambda script: counts[script]) if counts else None


def _script(letter: str) -> str:
    code = ord(letter)
    return next((script for end, script in _SCRIPTS if code < end), "other")
