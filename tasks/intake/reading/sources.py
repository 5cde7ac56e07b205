"""Which files hold the rows, and the rows themselves, whatever the format."""

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rlcore.errors import ConfigError, DataError
from tasks.intake.reading.csv_rows import csv_rows
from tasks.intake.reading.json_array import json_array
from tasks.intake.reading.json_lines import json_lines
from tasks.intake.reading.lines import Format, Line, Source
from tasks.intake.reading.streams import UTF_8, is_gzip, opened
from tasks.intake.reading.tables import hub_rows, parquet_rows

ENDINGS: Mapping[str, Format] = {".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
"""What a file name may end with, and the format it says. `.gz` may follow."""

_READERS: Mapping[Format, Callable[[Source], Iterator[Line]]] = {
    "jsonl": json_lines,
    "json": json_array,
    "csv": csv_rows,
    "parquet": parquet_rows,
    "hub": hub_rows,
}
_EXPECTED = f"{', '.join(ENDINGS)}, or these with .gz"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\S+)?")
# A list, or an object on several lines: neither is a line of JSON Lines.
_JSON = re.compile(rb"\s*(\[\s*([{\]]|$)|\{[ \t\r]*\n)")
_PARQUET = b"PAR1"
_HEAD_BYTES = 4096


def sources(path: str | Path, encoding: str = UTF_8) -> list[Source]:
    """What to read: a file, every file of a folder, or a data set of the hub (`owner/name` or `owner/name:split`).

    The content decides where it is beyond doubt: what is packed, a list of objects or objects on several lines under
    the name of JSON Lines, and Parquet under any name.

    Args:
        path: files of a folder whose names begin with a dot or an underscore are left out.
        encoding: of texts, as Python calls it.

    Raises:
        ConfigError: the encoding or the ending of a file name is unknown, or there is nothing of that name.
        DataError: a file must not be read, or the folder holds none.
    """
    encoding = _codec(encoding)
    place = Path(path)
    if place.is_file():
        return [_source(place, encoding)]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if not file.name.startswith((".", "_")))
        if not files:
            raise DataError(f"{path}: the folder is empty. Expected files ending in {_EXPECTED}.")
        return [_source(file, encoding) for file in files]
    # Below a folder that is there, a name that is not is a mistake.
    is_hub_name = _HUB_NAME.fullmatch(str(path)) is not None and not place.parent.is_dir()
    if is_hub_name and not place.exists() and not ending_of(place):
        return [Source(place, "hub", UTF_8, is_packed=False)]
    raise ConfigError(
        f"{path}: {_no_file(place)}. Expected a file ending in {_EXPECTED}, a folder of them, or a data set of "
        "the hub as owner/name or owner/name:split."
    )


def find(folder: Path, kind: str) -> Path | None:
    """Where a data set keeps the rows of a kind: `<kind>.<ending>`, the same packed, or the folder `<kind>`.

    Raises:
        ConfigError: there is more than one of them.
    """
    names = [kind, *(f"{kind}{ending}{packed}" for ending in ENDINGS for packed in ("", ".gz"))]
    found = [folder / name for name in names if (folder / name).exists()]
    if len(found) > 1:
        listed = " and ".join(path.name for path in found)
        raise ConfigError(f"{folder}: found {listed}, expected one place for {kind}. Move the others out.")
    return found[0] if found else None


def chunks(source: Source, max_rows: int = 20_000, max_bytes: int = 32 << 20) -> Iterator[list[Line]]:
    """The rows of a source, in pieces that fit into memory.

    Args:
        max_rows, max_bytes: a piece ends with the row that reaches one of them.

    Raises:
        DataError: the file is not there or must not be read.
        ConfigError: there is no such data set of the hub.
    """
    piece: list[Line] = []
    size = 0
    for line in lines(source):
        piece.append(line)
        size += len(line.raw)
        if len(piece) >= max_rows or size >= max_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def lines(source: Source) -> Iterator[Line]:
    """The rows of a source, one after the other. Raises what `chunks` raises."""
    return _READERS[source.format](source)


def ending_of(file: Path) -> str:
    """The ending of a file name that says its format, without .gz; empty where there is none."""
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return suffix if suffix in ENDINGS else ""


def _source(file: Path, encoding: str) -> Source:
    ending = ending_of(file)
    if ending and not file.is_file():
        raise ConfigError(
            f"{file}: {_no_file(file)}, expected a file. Take it out of the folder, or put the file there."
        )
    if not ending:
        raise ConfigError(
            f"{file}: expected a file whose name ends in {_EXPECTED}. Convert it, rename it, or move it elsewhere."
        )
    source = Source(file, ENDINGS[ending], encoding, is_gzip(file))
    with opened(source) as stream:
        head = stream.file.read(_HEAD_BYTES)
    if head.startswith(_PARQUET):
        return source._replace(format="parquet", encoding=UTF_8)
    if source.format == "jsonl" and _JSON.match(head):
        return source._replace(format="json")
    return source


def _no_file(place: Path) -> str:
    """What is there instead of a file."""
    if place.is_dir():
        return "found a folder"
    if place.exists():
        return "found a pipe or a device, which cannot be read twice"
    return "found a link that leads nowhere" if place.is_symlink() else "no such file or folder"


def _codec(encoding: str) -> str:
    """The one name of an encoding that has several."""
    try:
        # Some codecs are not for files: they know no way around a byte that they cannot read.
        codecs.getincrementaldecoder(encoding)("surrogateescape").decode("a".encode(encoding), final=True)
        name = codecs.lookup(encoding).name
    except (LookupError, UnicodeError):
        raise ConfigError(
            f"Found the encoding {encoding!r}, expected one that Python knows, as utf-8, utf-16, latin-1 or cp1252."
        ) from None
    return UTF_8 if name == "utf-8-sig" else name
