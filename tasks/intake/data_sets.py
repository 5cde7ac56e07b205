"""Data sets of one's own: rows are added to `data/raw/<name>/`, kept by DVC, and compared with earlier versions."""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from rlcore.configs import ValidateConfig
from rlcore.errors import ConfigError, DataError
from tasks.intake.kinds import KINDS, as_text, columns_of_kinds, kind_of, listed, values_of
from tasks.intake.reading import Line, Source, find, lines, sources
from tasks.records import artifacts, versioning
from tasks.records.lent_parameters import own_parameters
from tasks.records.parameters import stage_config
from tasks.records.revisions import md5_at

HOME = artifacts.RAW.parent
OWN = "own"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True)
class Added:
    """What `add` did.

    Attributes:
        folder: relative to the checkout.
        kind: of the rows.
        rows: that are new.
        repeated: rows that were there already, and were left out.
        total: rows of the file after that.
        md5: of the folder, as DVC keeps it.
        empty: kinds that the data set has no rows of.
    """

    folder: Path
    kind: str
    rows: int
    repeated: int
    total: int
    md5: str
    empty: tuple[str, ...]


class Changed(NamedTuple):
    """A row whose prompt stayed."""

    before: str
    after: str


@dataclass
class FileDifference:
    """How the rows of one kind differ from an earlier version, each row as JSON.

    Attributes:
        before, after: number of rows.
    """

    name: str
    before: int = 0
    after: int = 0
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)


def source_in_use(root: Path) -> Path:
    """The folder that the pipeline reads its data from.

    Raises:
        ConfigError: params.yaml, or its section `validate`, is faulty.
    """
    config = stage_config("validate", own_parameters(root))
    assert isinstance(config, ValidateConfig)
    return Path(config.source)


def name_of(source: Path) -> str:
    """The data set that lies in a folder, by its name; `own` for the demo and for folders elsewhere."""
    return source.name if source.parent == HOME and source != artifacts.RAW else OWN


def add(
    origin: str | Path, name: str, kind: str | None, root: Path, *, replace: bool = False, encoding: str = "utf-8"
) -> Added:
    """Add rows to a data set, as JSON Lines, and let DVC keep the result. Call it with the checkout held.

    Args:
        origin: a file, a folder of files, or a data set of the hub, as `reading.sources` takes them.
        name: of the data set.
        kind: of the rows; None finds it by the columns of the first row.
        root: the checkout.
        replace: let the rows take the place of those of their kind, instead of coming after them.
        encoding: of the files.

    Raises:
        ConfigError: a name that cannot be used, a file of an unknown format, or one of the data set itself.
        DataError: there is no row, or something that is no row of the kind. Nothing was changed.
    """
    folder = folder_of(name)
    if folder == artifacts.RAW:
        raise ConfigError(f"{folder} is made by the stage demo_data. Choose another name with --name.")
    if (root / folder).is_symlink():
        raise ConfigError(f"{folder}: found a link, expected a folder. Replace it by one, or choose another --name.")
    files = sources(origin, encoding)
    kind, count = _check(files, kind)
    target = root / folder / f"{kind}.jsonl"
    place = find(root / folder, kind) or target
    if place != target:
        raise ConfigError(
            f"{folder / place.name}: rows are added to {target.name}. Move it elsewhere, and add it first."
        )
    if not (target.exists() and files[0].path.exists() and files[0].path.samefile(target)):
        rows, total = _write(files, target, [] if replace or not target.exists() else sources(target))
    else:
        rows, total = 0, count
    needed = [other.name for other in KINDS.values() if other.is_needed]
    places = {other: find(root / folder, other) or root / folder / f"{other}.jsonl" for other in needed}
    for path in places.values():
        path.touch()
    for other in KINDS:
        # Of an earlier `add` that was killed: no part of the data set.
        _partial(root / folder / f"{other}.jsonl").unlink(missing_ok=True)
    versioning.prepare(root)
    md5 = artifacts.content_md5(root / folder)
    versioning.keep(folder, md5, root)
    empty = [other for other, path in places.items() if path.is_file() and not path.stat().st_size]
    return Added(folder, kind, rows, count - rows, total, md5, tuple(empty))


def difference(revision: str, name: str, root: Path) -> Iterator[FileDifference]:
    """How the data set differs from a git revision, kind by kind.

    Raises:
        ConfigError: git does not know the revision, or the revision the data set.
        DataError: the data set is not there, or neither cache nor remote has its earlier version.
    """
    folder = folder_of(name)
    if not (root / folder).is_dir():
        raise DataError(f"{folder}: no such folder. Add rows with `rlhf data add FILE`, or bring it with `dvc pull`.")
    earlier = artifacts.STATE / "earlier-data"
    versioning.materialise(md5_at(revision, folder, root), earlier, root)
    try:
        for kind in KINDS:
            before, after = find(root / earlier, kind), find(root / folder, kind)
            if place := after or before:
                yield _file_difference(place.name, *(sources(path) if path else [] for path in (before, after)))
    finally:
        shutil.rmtree(root / earlier)


def folder_of(name: str) -> Path:
    """Where a data set lies, relative to the checkout.

    Raises:
        ConfigError: the name would lead elsewhere.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name: found {name!r}, expected letters, digits, dots, dashes and underscores.")
    return HOME / name


def _check(files: list[Source], kind: str | None) -> tuple[str, int]:
    """The kind of the rows and their number, after a look at every row."""
    count = 0
    for source in files:
        for line in lines(source):
            if line.fault is not None:
                raise DataError(f"{line.fault.at(source.path)} Nothing was added.")
            kind = kind or _kind_of(line, source.path)
            if lacking := _lacking(kind, line.row):
                raise DataError(
                    f"{source.path}:{line.number}: found no {lacking}, which a row of {kind} has. "
                    "Mend the row, or name another --kind. Nothing was added."
                )
            count += 1
    if kind is None or not count:
        raise DataError(f"{files[0].path}: found no rows. Nothing was added.")
    return kind, count


def _kind_of(line: Line, path: Path) -> str:
    kind = kind_of(tuple(line.row))
    if kind is None:
        raise DataError(
            f"{path}:{line.number}: found the columns {listed(line.row)}, expected {columns_of_kinds()}. "
            "Nothing was added."
        )
    return kind


def _lacking(kind: str, row: Mapping[str, Any]) -> str | None:
    """What a row of a kind has, and this one not."""
    label = KINDS[kind].label
    wrong = [name for name, value in values_of(KINDS[kind], row).items() if as_text(value) is None]
    if wrong:
        return f"text in {', '.join(wrong)}"
    return label if label is not None and label not in row else None


def _write(files: list[Source], target: Path, earlier: list[Source]) -> tuple[int, int]:
    """Write the rows of `earlier` and then those of `files` that are not among them, whole or not at all.

    Returns:
        How many rows of the files are new, and how many there are now.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    seen: set[bytes] = set()
    total = new = 0
    try:
        with partial.open("wb") as output:
            for is_new, line in chain(zip(repeat(False), _lines(earlier)), zip(repeat(True), _lines(files))):
                key = hashlib.blake2b(_canonical(line).encode(), digest_size=16).digest()
                # What is there twice already stays: only what comes anew is compared.
                if is_new and key in seen:
                    continue
                seen.add(key)
                _refuse_loss(line, target)
                output.write(line.raw.rstrip(b"\r\n") + b"\n")
                total += 1
                new += is_new
            output.flush()
            os.fsync(output.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return new, total


def _partial(target: Path) -> Path:
    """Where a file lies until it is whole."""
    return target.with_name(f".{target.name}.partial")


def _refuse_loss(line: Line, target: Path) -> None:
    """A faulty line that is there already stays as it is; one that cannot be written again must be mended first."""
    fault = line.fault
    if fault is not None and (fault.ends_file or fault.rule == "row_size" or b"\n" in line.raw.rstrip(b"\r\n")):
        raise DataError(f"{fault.at(target)} Nothing was added.")


def _file_difference(name: str, before: list[Source], after: list[Source]) -> FileDifference:
    found = FileDifference(name)
    counted: Counter[str] = Counter()
    for line in _lines(after):
        counted[_canonical(line)] += 1
        found.after += 1
    for line in _lines(before):
        row = _canonical(line)
        found.before += 1
        if counted[row]:
            counted[row] -= 1
        else:
            found.removed.append(row)
    found.added = list(counted.elements())
    _pair(found)
    return found


def _pair(found: FileDifference) -> None:
    """Rows that went and came with the same prompt are changed ones."""
    came: dict[Any, list[str]] = {}
    for row in found.added:
        came.setdefault(_prompt(row), []).append(row)
    removed = []
    for row in found.removed:
        if matching := came.get(_prompt(row)):
            found.changed.append(Changed(row, matching.pop(0)))
        else:
            removed.append(row)
    found.removed = removed
    found.added = [row for rows in came.values() for row in rows]


def _prompt(row: str) -> Any:
    value = json.loads(row)
    return value.get("prompt") if isinstance(value, dict) else None


def _lines(files: list[Source]) -> Iterator[Line]:
    return chain.from_iterable(map(lines, files))


def _canonical(line: Line) -> str:
    """A row as JSON that does not depend on the order of its keys; a faulty line as JSON text."""
    value: Any = line.row if line.fault is None else line.raw.decode("utf-8", errors="replace").strip()
    # Half a surrogate pair stays the escape that it was.
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode(errors="backslashreplace").decode()
