"""Where a growing text has to stop. Stop strings are matched in decoded text, never in token ids.

A stop string may begin inside one token and end inside another, and the same text has many tokenisations.
"""

from collections.abc import Sequence

from rlcore.errors import ConfigError


def checked_stop_sequences(stop: Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple; None is none. Empty ones are allowed and match nothing.

    Raises:
        ConfigError: a plain string, which would stop at each of its characters, or an entry that is no text.
    """
    if isinstance(stop, str):
        raise ConfigError(f"stop={stop!r}: found one string, expected a list of strings. Write [{stop!r}].")
    if not isinstance(stop, Sequence | None):
        raise ConfigError(f"stop: found {stop!r}, expected a list of strings.")
    for entry in stop or ():
        if not isinstance(entry, str):
            raise ConfigError(f"stop: found {entry!r}, expected text. Pass token ids as end ids instead.")
    return tuple(stop or ())


def find_stop(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Position of the first character of the earliest stop string at or behind `start`; None where there is none.

    Empty stop strings match nothing.
    """
    positions = [text.find(entry, start) for entry in stop if entry]
    return min((position for position in positions if position >= 0), default=None)


def match_stop(pieces: Sequence[str], stop: Sequence[str] | None) -> tuple[str, int | None]:
    """The text before the first stop string, and the index of the piece that completes it.

    Args:
        pieces: decoded text in the order in which it is generated.
        stop: stop strings; empty ones match nothing.

    Returns:
        The text without the stop string, and the index of the piece after which generation stops. Without a match: the
        whole text and None.

    Raises:
        ConfigError: see checked_stop_sequences.
    """
    entries = checked_stop_sequences(stop)
    overlap = max((len(entry) for entry in entries), default=1) - 1
    text = ""
    for index, piece in enumerate(pieces):
        unseen = max(0, len(text) - overlap)
        text += piece
        position = find_stop(text, entries, unseen)
        if position is not None:
            return text[:position], index
    return text, None
