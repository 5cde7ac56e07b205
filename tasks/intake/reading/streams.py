"""The bytes of a file as UTF-8 text: unpacked, brought over from a named encoding, without a byte order mark."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlcore.errors import DataError
from tasks.intake.reading.lines import MAX_ROW_BYTES, Fault, Line, Source

UTF_8 = "utf-8"
GZIP = b"\x1f\x8b"
_OTHER_PACKERS = {
    b"PK\x03\x04": "zip (or an Excel sheet)",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}
# The longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, UTF_8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16-be"),
)
"""Byte order mark, and the two names under which its encoding is known."""
_WIDE = ("utf-16", "utf-32")
_PIECE = 1 << 20


class Place(NamedTuple):
    """Where a row begins."""

    line: int
    """From 1."""
    column: int
    """From 1, in characters."""
    offset: int
    """From 0, in bytes of the unpacked file; of no meaning for other encodings than UTF-8."""


@dataclass
class Stream:
    """An open file.

    Attributes:
        file: its text in UTF-8. It ends where the file is damaged.
        start: bytes before the text, those of the byte order mark.
        damage: rule and message, once the damage was reached; the first one counts.
    """

    file: io.BufferedReader
    start: int
    damage: list[tuple[str, str]]

    def last_line(self, line: int, raw: bytes = b"") -> Iterator[Line]:
        """What ends the rows where the file is damaged, else nothing."""
        for rule, message in self.damage[:1]:
            yield Line(line, raw, {}, Fault(rule, line, None, message, ends_file=True))


def is_gzip(path: Path) -> bool:
    """Whether the content of a file is packed by gzip.

    Raises:
        DataError: the file is not there or must not be read.
    """
    with _open(path) as file:
        return file.peek(len(GZIP)).startswith(GZIP)


@contextmanager
def opened(source: Source) -> Iterator[Stream]:
    """A text file, open for reading.

    Raises:
        DataError: the file is not there or must not be read.
    """
    with opened_bytes(source) as stream:
        head = stream.file.peek(4)[:4]
        refusal = _refusal(head, source.encoding)
        if refusal is not None:
            yield Stream(_file(iter(())), 0, [refusal])
        elif source.encoding != UTF_8:
            yield Stream(_file(_recoded(stream.file, source.encoding, stream.damage)), 0, stream.damage)
        else:
            mark = codecs.BOM_UTF8 if head.startswith(codecs.BOM_UTF8) else b""
            yield Stream(stream.file, len(stream.file.read(len(mark))), stream.damage)


@contextmanager
def opened_bytes(source: Source) -> Iterator[Stream]:
    """A file of any content, unpacked.

    Raises:
        DataError: the file is not there or must not be read.
    """
    with _open(source.path) as file:
        damage: list[tuple[str, str]] = []
        yield Stream(_file(_unpacked(file, damage)) if source.is_packed else file, 0, damage)


def text_lines(stream: Stream) -> Iterator[tuple[Place, bytes]]:
    r"""Each line with its end; only `\n` ends one. Of a line beyond MAX_ROW_BYTES only the begin: `is_cut` tells."""
    offset = stream.start
    read = partial(stream.file.readline, MAX_ROW_BYTES)
    for number, raw in enumerate(iter(read, b""), start=1):
        yield Place(number, 1, offset), raw
        offset += len(raw)
        rest = raw
        while is_cut(rest):
            rest = read()
            offset += len(rest)


def is_cut(raw: bytes) -> bool:
    """Whether a line of `text_lines` is longer than what was read."""
    return len(raw) >= MAX_ROW_BYTES and not raw.endswith(b"\n")


def too_long(place: Place) -> Fault:
    """The fault of a row beyond MAX_ROW_BYTES."""
    limit = f"{MAX_ROW_BYTES >> 20} MiB"
    message = f"The row is longer than {limit}. Check that its end is not missing; cut it, or leave it out."
    return Fault("row_size", place.line, place.column, message)


def undecodable(raw: bytes, error: UnicodeDecodeError, place: Place, encoding: str) -> Fault:
    """The fault of bytes that are no text, at the first of them."""
    line, column = position(raw[: error.start].decode(), place)
    if encoding == UTF_8:
        found = f"byte 0x{raw[error.start]:02X} at byte {place.offset + error.start} of the file, expected UTF-8"
        advice = "Save the file as UTF-8, or name its encoding: --encoding, validate.encoding"
    else:
        character = raw[error.start : error.start + 3].decode(errors="surrogatepass")[:1]
        # A byte that the encoding has no character for was kept as U+DC80 + byte - 0x80.
        is_byte = "\udc80" <= character <= "\udcff"
        found = f"byte 0x{ord(character) - 0xDC00:02X}" if is_byte else f"half a character, 0x{ord(character):04X}"
        found += f", which is none of {encoding}"
        advice = "Name the right encoding, or mend the row"
    return Fault("encoding", line, column, f"Found {found}. {advice}.")


def position(before: str, place: Place) -> tuple[int, int]:
    """Line and column after some text that begins at a place."""
    breaks = before.count("\n")
    return place.line + breaks, len(before) - before.rfind("\n") if breaks else place.column + len(before)


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}. Expected a file that can be read.") from error


def _file(pieces: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Pieces(pieces), _PIECE)


class _Pieces(io.RawIOBase):
    """Bytes that come in pieces, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        done = 0
        while done < len(buffer):
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
            size = min(len(buffer) - done, len(self._left))
            buffer[done : done + size] = self._left[:size]
            self._left = self._left[size:]
            done += size
        return done


def _unpacked(file: BinaryIO, damage: list[tuple[str, str]]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as packed:
        size = 0
        try:
            # One piece at a time: what came before the damage is not lost with it.
            while piece := packed.read1(_PIECE):
                size += len(piece)
                yield piece
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            found = "is cut off" if isinstance(error, EOFError) else f"is damaged ({error})"
            message = f"The packed file {found} after {size} unpacked bytes. The rows above were read; copy it again."
            damage.append(("gzip", message))


def _recoded(text: BinaryIO, encoding: str, damage: list[tuple[str, str]]) -> Iterator[bytes]:
    """The text in UTF-8. What the encoding has no character for becomes bytes that are no UTF-8, to be found there."""
    errors = "surrogatepass" if encoding.startswith(_WIDE) else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    done = 0
    is_first = True
    while True:
        piece = text.read(_PIECE)
        waiting = len(decoder.getstate()[0])
        try:
            characters = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            yield error.object[: error.start].decode(encoding, errors).encode(errors="surrogatepass")
            place = done - waiting + error.start
            damage.append(("encoding", f"Found {error.reason} at byte {place}, expected {encoding}. Copy it again."))
            return
        done += len(piece)
        if is_first and characters:
            characters = characters.removeprefix("\ufeff")
            is_first = False
        yield characters.encode(errors="surrogatepass")
        if not piece:
            return


def _refusal(head: bytes, encoding: str) -> tuple[str, str] | None:
    """Why a file that begins with these bytes is not read at all."""
    for magic, packer in _OTHER_PACKERS.items():
        if head.startswith(magic):
            return "gzip", f"The file is packed by {packer}, expected gzip or none. Unpack it."
    mark, names = next(((mark, names) for mark, *names in _MARKS if head.startswith(mark)), (b"", []))
    if encoding in names:
        return None
    if names:
        found = f"{names[0]} by its byte order mark {mark.hex(' ').upper()} at byte 0"
        return "encoding", f"Found {found}, expected {encoding}. Save it as UTF-8, or say --encoding {names[0]}."
    if encoding in _WIDE:
        return "encoding", f"Found no byte order mark, expected one of {encoding}. Say {encoding}-le or {encoding}-be."
    if encoding == UTF_8 and b"\0" in head:
        guess = "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
        found = f"a zero at byte {head.index(0)}, as in {guess}"
        return "encoding", f"Found {found}, expected UTF-8. Save it as UTF-8, or say --encoding {guess}."
    return None
