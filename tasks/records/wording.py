"""Words of other people's errors within ours."""


def first_line(text: str | None) -> str:
    """The first line of a message, without its full stop; what to say instead where there is no message."""
    lines = (text or "").strip().splitlines()
    return lines[0].rstrip(". ") if lines else "no reason given"
