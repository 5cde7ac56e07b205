"""`rlhf data check`: look at files of rows without a pipeline."""

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.configs import ValidateConfig
from rlcore.errors import ConfigError
from rlcore.exit_codes import CONFIGURATION, DONE
from tasks.intake.kinds import ALIASES, KINDS
from tasks.intake.reading import FAULTS
from tasks.records.artifacts import write_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from tasks.intake.checking import Checked
    from tasks.intake.findings import FileReport
    from tasks.intake.reading import Line, Source

WAIT = 2.0
"""Seconds before a bar shows how far the work is."""
PLACES = 3
"""First places of a rule that the table shows."""
_NOT_ADDED = (*FAULTS, "is_text", "label", "scores", "case_idx")
"""Rules about rows that `rlhf data add` may refuse: they cannot be read, or lack what their kind has."""
_WIDTH = 140
"""Characters of a line where no terminal says it."""

CHECK = """Look at every row: what is wrong, where, and what to do. Nothing is changed. Ends with 0 where every row is
usable, else with 2."""


def add_check(parser: argparse.ArgumentParser) -> None:
    """Fill the parser of the verb."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="JSON Lines, a JSON list, CSV or Parquet, or packed")
    add_reading(parser)
    parser.add_argument("--model", metavar="FOLDER", help="measure lengths with the tokenizer of this model folder")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="of prompt and response together; needs --model")
    parser.add_argument("--near-duplicates", metavar="S", type=float, help="look for rows of this similarity, 0 to 1")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("--html", metavar="PAGE", help="write the report as a page")
    parser.add_argument("--against", metavar="VALIDATION.json", help="say how the rows differ from earlier ones")
    parser.set_defaults(run=_check)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options that say how files of rows are read."""
    parser.add_argument("--kind", choices=(*KINDS, *ALIASES), help="of the rows; by default their columns tell")
    parser.add_argument("--encoding", default="utf-8", help="of text files that are not UTF-8: utf-16, latin-1, …")


def _check(arguments: argparse.Namespace) -> int:
    # The libraries of the rules take a second to load, which other verbs do not wait for.
    from tasks.intake.checking import check
    from tasks.intake.reporting.drift import compare, in_words, read_report

    config = ValidateConfig(
        encoding=arguments.encoding, tokenizer=arguments.model, max_tokens=arguments.max_tokens,
        near_duplicates=arguments.near_duplicates,
    )  # fmt: skip
    page_path = None if arguments.html is None else _page_path(arguments.html, [*arguments.files, arguments.against])
    earlier = None if arguments.against is None else read_report(Path(arguments.against))
    kind = ALIASES.get(arguments.kind, arguments.kind)
    with _Bar() as bar:
        checked = check(arguments.files, kind, config, bar.advance)
    report = checked.as_json()
    shifts = None if earlier is None else compare(report, earlier)
    if page_path is not None:
        from tasks.intake.reporting.page import page

        write_text(page_path, page(report) if shifts is None else page(report, shifts))
    if arguments.json:
        found = [_as_json(file) for file in checked.files]
        sys.stdout.write(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False, indent=2) + "\n")
    else:
        _show(checked, arguments.files)
        if shifts is not None:
            print(in_words(shifts))
    return CONFIGURATION if checked.has_faults else DONE


def _page_path(name: str, read: Sequence[str | None]) -> Path:
    """Where the page goes: never over what is read.

    Raises:
        ConfigError: a folder or a file of data is there.
    """
    path = Path(name)
    if path.is_dir():
        raise ConfigError(f"--html: found the folder {name!r}, expected a file. Name one, as {path / 'data.html'}.")
    for other in map(Path, filter(None, read)):
        for file in [other, *other.iterdir()] if other.is_dir() else [other]:
            if path.exists() and file.exists() and path.samefile(file):
                raise ConfigError(f"--html: {name} is one of the files to read. Name another file for the page.")
    return path


def _as_json(file: "FileReport") -> dict[str, Any]:
    findings = [
        {
            "row": row["row"], "line": row["line"], "field": row["field"], "rule": finding["rule"],
            "severity": finding["severity"], "message": " ".join(filter(None, (row["message"], finding["message"]))),
        }
        for finding in file.findings()
        for row in finding["rows"]
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    for finding in file.findings():
        counts[finding["rule"]] += finding["count"]
    return {**file.as_json(), "counts": counts, "findings": sorted(findings, key=lambda finding: finding["row"])}


def _show(checked: "Checked", names: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    for file in checked.files:
        console.print(_printable(_headline(file)), soft_wrap=True, markup=False)
        if findings := file.findings():
            console.print(_table(findings))
    for line in _next(checked, names):
        console.print(_printable(line), soft_wrap=True, markup=False)


def _headline(file: "FileReport") -> str:
    usable = file.rows - file.dropped
    said = "every row is usable" if usable == file.rows else f"{usable} of {file.rows} rows are usable"
    return f"{file.file}: {file.rows} rows of {file.kind} ({file.format}, {file.encoding}); {said}"


def _table(findings: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 2))
    for name in ("rule", "", "count", "first in line", "what to do"):
        table.add_column(name, justify="right" if name == "count" else "left", overflow="fold")
    for finding in findings:
        places = [
            f"{row['line']}{':' if row['field'] else ''}{_printable(row['field'])}" for row in finding["rows"][:PLACES]
        ]
        told = finding["rows"][0]["message"]
        table.add_row(
            finding["rule"], finding["severity"], str(finding["count"]), Text("\n".join(places)),
            Text(_printable(f"{told} {finding['message']}".strip())),
        )  # fmt: skip
    return table


def _printable(text: str) -> str:
    """A text that a terminal shows as it is: whatever would steer it becomes an escape."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _next(checked: "Checked", names: Sequence[str]) -> Iterator[str]:
    """What the person may do now."""
    listed = " ".join(map(shlex.quote, names))
    if any(file.is_cut for file in checked.files):
        yield "A part of a file could not be read: its number of rows is not known."
    if checked.has_faults:
        yield f"next: mend the rows above, then rlhf data check {listed}"
        if not any(file.count(rule) for file in checked.files for rule in _NOT_ADDED):
            yield "      or add them as they are: the pipeline puts unusable rows into data/validated/quarantine.jsonl"
    elif not any(file.rows for file in checked.files):
        yield "There are no rows."
    else:
        yield from (f"next: rlhf data add {shlex.quote(name)}" for name in names)


class _Bar:
    """A bar with the time that is left, on a terminal, once the work takes longer."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._rows: Counter[Path] = Counter()
        self._bytes: Counter[Path] = Counter()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, source: "Source", lines: "Sequence[Line]") -> None:
        """Rows of a file were looked at."""
        if not sys.stderr.isatty():
            return
        self._rows[source.path] += len(lines)
        self._bytes[source.path] += sum(len(line.raw) for line in lines)
        if self._bar is None and time.monotonic() - self._begun > WAIT:
            self._bar = _progress()
            self._bar.start()
        if self._bar is not None:
            # Only of plain JSON Lines is known how much of the file the rows are.
            is_known = source.format == "jsonl" and not source.is_packed
            total = source.path.stat().st_size if is_known else None
            if self._task is None or self._bar.tasks[self._task].description != str(source.path):
                self._task = self._bar.add_task(str(source.path), total=total, rows=0)
            self._bar.update(self._task, completed=self._bytes[source.path], rows=self._rows[source.path])


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
