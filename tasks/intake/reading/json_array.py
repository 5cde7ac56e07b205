"""JSON: rows in a list, or one after the other, on as many lines as they like.

The end of each row is found without decoding it, so a row that is broken inside costs no other one.
"""

import re
from collections.abc import Iterator

from tasks.intake.reading.json_rows import row_of, shown
from tasks.intake.reading.lines import BEGIN_BYTES, MAX_ROW_BYTES, Fault, Line, Source
from tasks.intake.reading.streams import Place, Stream, opened, position, too_long

_PIECE = 1 << 20
# A whole string, or the begin of one that has no end so far; brackets; commas.
_MARK = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+"|["{}\[\],]')
_UNENDED = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+\\?')
_PLAIN = re.compile(rb'[^\s{}\[\],"]+|.')
_BLANKS = re.compile(rb"[ \t\r\n]*")
_BREAK = re.compile(rb"[ \t\r]*\n[ \t\r\n]*")
_CLOSING = {b"{": b"}", b"[": b"]"}


def json_array(source: Source) -> Iterator[Line]:
    """The rows of a file. In the bytes of a row, a line break with the blanks around it is one blank."""
    with opened(source) as stream:
        text = _Text(stream)
        while text.skip_blanks():
            if text.begins(b"["):
                yield from _list(text, source)
            elif text.begins(b"{"):
                yield _row(text, source)
            elif text.begins(b","):
                fault = text.fault("Found {found} between objects, expected a list around them, or only line breaks.")
                yield Line(fault.line, text.take(1), {}, fault)
            else:
                fault = text.fault("Found {found}, expected a list of objects, or objects.")
                raw = text.take_broken()
                yield Line(fault.line, raw, {}, fault._replace(ends_file=text.is_lost))
            if text.is_lost:
                return
        yield from stream.last_line(text.place.line)


def _list(text: "_Text", source: Source) -> Iterator[Line]:
    text.take(1)
    missing: Fault | None = None
    while text.skip_blanks():
        place = text.place
        if text.begins(b"]"):
            text.take(1)
            return
        if text.begins(b","):
            fault = text.fault("Found {found}, expected a row. Take the comma out.")
            yield Line(place.line, text.take(1), {}, fault)
            continue
        line = _row(text, source)
        yield line if missing is None or line.fault else line._replace(row={}, fault=missing)
        missing = None
        if text.is_lost:
            return
        if text.is_resumed or not text.skip_blanks() or text.begins(b"]"):
            continue
        if not text.begins(b","):
            missing = text.fault("Found {found}, expected a comma before a further row.")
            continue
        comma = text.place
        text.take(1)
        if text.skip_blanks() and text.begins(b"]"):
            message = "Found a comma after the last row, expected ]. Take the comma out."
            yield Line(comma.line, b",", {}, Fault("json", comma.line, comma.column, message))
    if not text.stream.damage:
        text.is_lost = True
        fault = text.fault("The file ends before the ] of its list. Is it cut off?")
        yield Line(fault.line, b"", {}, fault._replace(ends_file=True))


def _row(text: "_Text", source: Source) -> Line:
    place = text.place
    text.is_resumed = False
    size = text.size_of_value()
    raw = text.take_broken() if size is None else text.take(size)
    if text.is_lost and text.stream.damage:
        return next(text.stream.last_line(place.line, raw))
    if len(raw) >= MAX_ROW_BYTES:
        return Line(place.line, raw[:BEGIN_BYTES], {}, too_long(place)._replace(ends_file=text.is_lost))
    row, fault = row_of(raw, place, source.encoding)
    if size is None:
        assert fault is not None
        return Line(place.line, raw, {}, fault._replace(ends_file=text.is_lost))
    one_line = _BREAK.sub(b" ", raw) if b"\n" in raw else raw
    return Line(place.line, one_line + b"\n", row, fault)


class _Text:
    """The text of a file, of which as much is in memory as one row needs.

    Attributes:
        place: of what comes next.
        indent: the blanks before it on its line; None where more is before it.
        is_lost: whether nothing that follows can be told apart.
        is_resumed: whether a row without an end was left at the begin of the next.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.place = Place(1, 1, stream.start)
        self.indent: bytes | None = b""
        self.is_lost = self.is_resumed = False
        self._buffer = b""
        self._next = 0

    def begins(self, start: bytes) -> bool:
        """Whether this comes next."""
        return self._buffer.startswith(start, self._next)

    def take(self, size: int) -> bytes:
        """What comes next."""
        taken = self._buffer[self._next : self._next + size]
        self._next += size
        line, column = position(taken.decode(errors="replace"), self.place)
        self.place = Place(line, column, self.place.offset + size)
        self.indent = None
        return taken

    def skip_blanks(self) -> bool:
        """Whether anything is left after the blanks that come next."""
        while True:
            blanks = _BLANKS.match(self._buffer, self._next)
            assert blanks is not None
            if blanks[0]:
                indent = self.indent
                before, is_broken, after = self.take(len(blanks[0])).rpartition(b"\n")
                self.indent = after if is_broken else None if indent is None else indent + after
            if self._next < len(self._buffer):
                return True
            if not self._read():
                return False

    def fault(self, message: str) -> Fault:
        """What is wrong with what comes next, which is no row; `{found}` in the message stands for it."""
        found = self._buffer[self._next : self._next + 4].decode(errors="replace")[:1]
        return Fault("json", self.place.line, self.place.column, message.format(found=shown(found)))

    def size_of_value(self) -> int | None:
        """Bytes of the value that comes next; None where its end cannot be told."""
        if not self.begins(b"{") and not self.begins(b"["):
            return self._size_of_plain()
        opened: list[bytes] = []
        done, before = 0, b""
        while True:
            for mark in _MARK.finditer(self._buffer, self._next + done):
                found = mark[0]
                if found == b'"':
                    break
                begin, done = self._next + done, mark.end() - self._next
                if found in _CLOSING:
                    if opened and not _may_begin(opened[-1], before, self._buffer[begin : mark.start()]):
                        return None
                    opened.append(found)
                elif found in b"}]":
                    if _CLOSING[opened.pop()] != found:
                        return None
                    if not opened:
                        return done
                before = found
            unended = _UNENDED.search(self._buffer, self._next + done)
            is_broken = unended is not None and unended.end() < len(self._buffer)
            if is_broken or len(self._buffer) - self._next > MAX_ROW_BYTES or not self._read():
                return None

    def take_broken(self) -> bytes:
        """What has no end, up to where the next one begins as it did: on a line of its own, as far indented."""
        indent = self.indent
        start = re.compile(rb"\n ?\{" if indent is None else rb"\n" + re.escape(indent) + rb"\{")
        following = start.search(self._buffer, self._next + 1)
        while following is None and len(self._buffer) - self._next <= MAX_ROW_BYTES and self._read():
            following = start.search(self._buffer, self._next + 1)
        self.is_lost, self.is_resumed = following is None, following is not None
        end = len(self._buffer) if following is None else following.end() - 1
        taken = self.take(end - self._next)
        self.indent = indent
        return taken

    def _size_of_plain(self) -> int | None:
        while True:
            pattern = _MARK if self.begins(b'"') else _PLAIN
            found = pattern.match(self._buffer, self._next)
            assert found is not None
            if found[0] == b'"':
                found = _UNENDED.match(self._buffer, self._next)
                assert found is not None
                if found.end() < len(self._buffer) or not self._read():
                    return None
            elif found.end() < len(self._buffer) or not self._read():
                return found.end() - self._next

    def _read(self) -> bool:
        # As much again as is there, so that a long row is not gone through for each of its pieces.
        piece = self.stream.file.read(max(_PIECE, len(self._buffer) - self._next))
        self._buffer = self._buffer[self._next :] + piece
        self._next = 0
        return bool(piece)


def _may_begin(around: bytes, before: bytes, between: bytes) -> bool:
    """Whether an object or list may begin inside another one: after a name and a colon, or as the next of a list."""
    if around == b"{":
        return before.startswith(b'"') and between.strip() == b":"
    return before in (b"[", b",") and not between.strip()
