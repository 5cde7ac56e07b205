"""JSON Lines: an object on each line."""

from collections.abc import Iterator

from tasks.intake.reading.json_rows import row_of
from tasks.intake.reading.lines import BEGIN_BYTES, Line, Source
from tasks.intake.reading.streams import is_cut, opened, text_lines, too_long


def json_lines(source: Source) -> Iterator[Line]:
    """The rows of a file; blank lines are none."""
    number = 0
    with opened(source) as stream:
        for place, raw in text_lines(stream):
            number = place.line
            if stream.damage and not raw.endswith(b"\n"):
                yield from stream.last_line(number, raw)
                return
            if is_cut(raw):
                yield Line(number, raw[:BEGIN_BYTES], {}, too_long(place))
            elif raw.strip():
                yield Line(number, raw, *row_of(raw, place, source.encoding))
        yield from stream.last_line(number + 1)
