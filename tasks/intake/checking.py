"""A look at files of rows by themselves, without splits and quarantine."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rlcore.configs import ValidateConfig
from rlcore.errors import ConfigError
from tasks.intake.findings import FileReport
from tasks.intake.garbage import seldom_collected
from tasks.intake.inspection import Inspection
from tasks.intake.kinds import KINDS, columns_of_kinds, kind_of, listed
from tasks.intake.reading import Line, Source, chunks, sources
from tasks.intake.reporting.profile import Profile
from tasks.intake.reporting.report import figures, heading
from tasks.intake.text.tokens import TokenCounter

OnRows = Callable[[Source, Sequence[Line]], None]
"""Hears of rows that were looked at."""

_FIRST_ROWS = 200
"""Rows whose columns tell the kind of a file."""


@dataclass
class Checked:
    """What was found.

    Attributes:
        config: what the rows were checked with.
        inspections: kind → a look at its rows.
        profile: of the usable rows.
        files: in the order in which they were named.
    """

    config: ValidateConfig
    inspections: dict[str, Inspection] = field(default_factory=dict)
    profile: Profile = field(default_factory=Profile)
    files: list[FileReport] = field(default_factory=list)

    @property
    def has_faults(self) -> bool:
        """Whether a row is not usable."""
        return any(file.dropped or file.is_cut for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """The report in the form of `validation.json`; no row has a split."""
        faults = [f"{file.file}: {file.dropped} of {file.rows} rows not usable." for file in self.files if file.dropped]
        found = figures(self.inspections, self.profile)
        return {**heading(self.config), **found, "faults": faults, "splits": {}, "leaks": [], "leak_shares": None}


@seldom_collected()
def check(
    files: Iterable[str], kind: str | None, config: ValidateConfig, on_rows: OnRows = lambda source, lines: None
) -> Checked:
    """Look at every row of some files. Files of one kind are compared with each other.

    Args:
        files: paths of files or folders, or data sets of the hub.
        kind: of all rows; None lets the columns of each file tell.
        config: what to check them with.
        on_rows: hears of rows that were looked at.

    Raises:
        ConfigError: there is no such file or tokenizer, or the columns of a file are of no kind.
        DataError: a file must not be read.
    """
    found = [source for file in files for source in sources(file, config.encoding)]
    counter = None if config.tokenizer is None else TokenCounter(config.tokenizer)
    checked = Checked(config)
    for source in found:
        pieces = chunks(source)
        first = next(pieces, [])
        name = kind or _kind_of(source.path, first)
        if name not in checked.inspections:
            checked.inspections[name] = Inspection(KINDS[name], config, counter, checked.profile)
        inspection = checked.inspections[name]
        file = FileReport(str(source.path), name, source.format, source.encoding, config.rules)
        checked.files.append(file)
        inspection.open(file)
        for lines in chain([first], pieces):
            for _ in inspection.look(lines):
                pass
            on_rows(source, lines)
    for inspection in checked.inspections.values():
        for _ in inspection.near_duplicates():
            pass
    return checked


def _kind_of(file: Path, lines: Sequence[Line]) -> str:
    """The kind that most of the first rows are of. Where no row can be read, any kind says so."""
    rows = [line.row for line in islice((line for line in lines if line.fault is None), _FIRST_ROWS)]
    kinds = Counter(kind for row in rows if (kind := kind_of(list(row))) is not None)
    if not rows:
        return "prompts"
    if not kinds:
        raise ConfigError(
            f"{file}: found the columns {listed(rows[0])}, expected {columns_of_kinds()}. Rename the "
            "columns, or name the kind with --kind."
        )
    return kinds.most_common(1)[0][0]
