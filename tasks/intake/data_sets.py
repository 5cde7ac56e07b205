"""Data sets of one's own: rows are added to `data/raw/<name>/`, kept by DVC, and compared with earlier versions."""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlcore.configs import ValidateConfig
from rlcore.errors import ConfigError, DataError
from tasks.intake.raw_lines import Line, chunks
from tasks.records import artifacts, versioning
from tasks.records.lent_parameters import own_parameters
from tasks.records.parameters import stage_config
from tasks.records.revisions import md5_at

TEXT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "preferences": ("prompt", "chosen", "rejected"),
    "demonstrations": ("prompt", "response"),
    "prompts": ("prompt",),
}
"""Kind of row to the columns that make it one; the kind with the most columns that a row has is its kind."""
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
    """How the rows of one file differ from an earlier version, each row as JSON.

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


def add(file: Path, name: str, kind: str | None, root: Path, *, replace: bool = False) -> Added:
    """Add the rows of a file to a data set, and let DVC keep the result. Call it with the checkout held.

    Args:
        file: JSON Lines.
        name: of the data set.
        kind: of the rows; None finds it by the columns of the first row.
        root: the checkout.
        replace: let the rows take the place of those of their kind, instead of coming after them.

    Raises:
        ConfigError: a name that cannot be used.
        DataError: the file is missing or empty, or one of its lines is no row of the kind. Nothing was changed.
    """
    folder = folder_of(name)
    if folder == artifacts.RAW:
        raise ConfigError(f"{folder} is made by the stage demo_data. Choose another name with --name.")
    kind, count = _check(file, kind)
    target = root / folder / f"{kind}.jsonl"
    if not (file.exists() and target.exists() and file.samefile(target)):
        rows, total = _write(file, target, [] if replace else [target])
    else:
        rows, total = 0, count
    for other in TEXT_COLUMNS:
        (root / folder / f"{other}.jsonl").touch()
    versioning.prepare(root)
    md5 = artifacts.content_md5(root / folder)
    versioning.keep(folder, md5, root)
    empty = [other for other in TEXT_COLUMNS if not (root / folder / f"{other}.jsonl").stat().st_size]
    return Added(folder, kind, rows, count - rows, total, md5, tuple(empty))


def difference(revision: str, name: str, root: Path) -> Iterator[FileDifference]:
    """How the data set differs from a git revision, file by file.

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
        names = {path.name for where in (root / earlier, root / folder) for path in where.glob("*.jsonl")}
        for file in sorted(names):
            yield _file_difference(file, root / earlier / file, root / folder / file)
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


def _check(file: Path, kind: str | None) -> tuple[str, int]:
    """The kind of a file's rows and their number, after a look at every row."""
    count = 0
    for line in _lines(file):
        if line.fault is not None:
            raise DataError(f"{file}:{line.number}: expected a JSON object in UTF-8 on one line. Nothing was added.")
        kind = kind or _kind_of(line.row, file)
        wrong = [name for name in TEXT_COLUMNS[kind] if not isinstance(line.row.get(name), str)]
        if wrong:
            raise DataError(
                f"{file}:{line.number}: found no text in {', '.join(wrong)}, which a row of {kind} has. "
                "Mend the row, or name another --kind. Nothing was added."
            )
        count += 1
    if kind is None or not count:
        raise DataError(f"{file}: found no rows. Nothing was added.")
    return kind, count


def _kind_of(row: Mapping[str, Any], file: Path) -> str:
    for kind, columns in TEXT_COLUMNS.items():
        if set(columns) <= set(row):
            return kind
    expected = "; ".join(f"{', '.join(columns)} ({kind})" for kind, columns in TEXT_COLUMNS.items())
    raise DataError(f"{file}: found the columns {', '.join(row) or 'none'}, expected {expected}. Nothing was added.")


def _write(file: Path, target: Path, earlier: list[Path]) -> tuple[int, int]:
    """Write the rows of `earlier` and then those of `file` that are not among them, whole or not at all.

    Returns:
        How many rows of the file are new, and how many there are now.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    seen: set[bytes] = set()
    total = new = 0
    try:
        with partial.open("wb") as output:
            for source in (*(path for path in earlier if path.exists()), file):
                for line in _lines(source):
                    key = hashlib.blake2b(_canonical(line).encode(), digest_size=16).digest()
                    # What is there twice already stays: only what comes anew is compared.
                    if source is file and key in seen:
                        continue
                    seen.add(key)
                    output.write(line.raw.rstrip(b"\r\n") + b"\n")
                    total += 1
                    new += source is file
            output.flush()
            os.fsync(output.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return new, total


def _file_difference(name: str, before: Path, after: Path) -> FileDifference:
    found = FileDifference(name)
    counted: Counter[str] = Counter()
    for line in _lines(after) if after.exists() else ():
        counted[_canonical(line)] += 1
        found.after += 1
    for line in _lines(before) if before.exists() else ():
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


def _lines(file: Path) -> Iterator[Line]:
    for piece in chunks(file):
        yield from piece


def _canonical(line: Line) -> str:
    """A row as JSON that does not depend on the order of its keys; a faulty line as JSON text."""
    value: Any = line.row if line.fault is None else line.raw.decode("utf-8", errors="replace").strip()
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
