"""Characters that nobody sees."""

import re

# Joiners are part of many scripts and of emoji: only behind Latin text, or at the beginning, do they hide something.
# Tags spell the flags of regions behind a black flag.
ZERO_WIDTH = re.compile(
    "[\u180e\u200b\u2060-\u2064\ufeff]"
    "|(?:^|(?<=[\x00-\u024f]))[\u200c\u200d]"
    "|(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0000-\U000e007f]"
)
BIDI_CONTROL = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SEEN = re.compile(
    "[^\\s\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e007f]"
)


def is_blank(text: str) -> bool:
    """Whether a text has no character that can be seen."""
    return _SEEN.search(text) is None
