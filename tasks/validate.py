"""Stage `validate`: rows that keep the rules go to their split unchanged, the others to quarantine with the reasons."""

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy

from rlcore.configs import ValidateConfig
from rlcore.errors import DataError
from tasks.intake.raw_lines import Line, chunks, raw_lines
from tasks.intake.schemas import KINDS, MESSAGES, breaches
from tasks.intake.splits import SplitTable
from tasks.records.artifacts import SPLITS, VALIDATED, VALIDATION, Split, write_json
from tasks.records.stage import main, stage

SHOWN_ROWS = 100
"""Rows that the report lists for each rule and file; the rest is counted."""

NEEDED: tuple[tuple[str, Split], ...] = (("preferences", "train"), ("prompts", "train"), ("prompts", "held_out"))
"""Files without which nothing can be trained or measured."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def validate(config: ValidateConfig) -> None:
    """Check the raw data and lay it out by kind and split.

    Raises:
        DataError: a file is missing, too many rows break a rule, rows that belong together have two splits, or a needed
            split is empty. The report is written before.
    """
    with stage("validate", config) as run:
        report = validate_folder(Path(config.source), VALIDATED, config)
        write_json(VALIDATION, report.as_json())
        run.log(0, report.metrics())
        report.raise_faults()
        run.finish()


@dataclass
class FileReport:
    """What was found in the file of one kind."""

    kind: str
    max_dropped_share: float
    rows: int = 0
    keys: list[int | None] = field(default_factory=list)
    """For each row its key in the split table; None where the row was dropped."""
    splits: Counter[Split] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Rule → how often it was broken."""
    shown: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rule → the first rows that break it."""
    lengths: dict[str, "array[int]"] = field(default_factory=dict)
    """Text column → characters of each kept row."""
    prompts: set[bytes] = field(default_factory=set)
    """A digest of each different prompt."""
    objectives: set[str] = field(default_factory=set)
    """What the kept rows name as their `objective`."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.kind}.jsonl"

    @property
    def dropped(self) -> int:
        """Rows in quarantine."""
        return self.keys.count(None)

    def add(self, rule: str, severity: str, row: int, line: int, column: str) -> None:
        """Count a breach of a rule in a row (from 0) and line (from 1)."""
        self.counts[rule] += 1
        if self.counts[rule] <= SHOWN_ROWS:
            place = {"file": self.name, "row": row, "line": line, "field": column}
            faults = self.shown.setdefault(rule, [])
            faults.append({**place, "rule": rule, "severity": severity, "message": MESSAGES[rule]})

    def fault(self) -> str | None:
        """Why the file cannot be used."""
        if self.dropped <= self.max_dropped_share * self.rows:
            return None
        errors = [rule for rule, rows in self.shown.items() if rows[0]["severity"] == "error"]
        worst = max(errors, key=lambda rule: self.counts[rule])
        lines = list(dict.fromkeys(str(row["line"]) for row in self.shown[worst]))
        return (
            f"{self.name}: {self.dropped} of {self.rows} rows break a rule, more than "
            f"validate.max_dropped_share={self.max_dropped_share} allows. Most often {worst} in "
            f"{self.shown[worst][0]['field']}, first in line {', '.join(lines[:5])}: {MESSAGES[worst]}"
        )


@dataclass
class Report:
    """What was found in all files."""

    files: list[FileReport]
    leaks: list[str]

    def raise_faults(self) -> None:
        """Raise DataError, one line for each reason why the data cannot be used."""
        faults = [fault for file in self.files if (fault := file.fault()) is not None]
        if self.leaks:
            faults.append(f"Equal prompts or groups stand in two splits ({len(self.leaks)} times). {self.leaks[0]}")
        if not faults:
            kinds = {file.kind: file for file in self.files}
            faults = [
                f"{kind}.jsonl: no row for the split {split}. Add rows, or change the shares of validate."
                for kind, split in NEEDED
                if not kinds[kind].splits[split]
            ]
        if faults:
            raise DataError("\n".join([*faults, f"See {VALIDATION} and {VALIDATED / 'quarantine.jsonl'}."]))

    def metrics(self) -> dict[str, float]:
        """The numbers worth a look on every run."""
        dropped = sum(file.dropped for file in self.files)
        numbers: dict[str, float] = {"data/leaks": len(self.leaks), "data/dropped_count": dropped}
        for file in self.files:
            numbers[f"data/rows/{file.kind}"] = file.rows
            numbers[f"data/dropped/{file.kind}"] = file.dropped
            numbers.update({f"data/{rule}/{file.kind}": count for rule, count in file.counts.items()})
        return numbers

    def as_json(self) -> dict[str, Any]:
        """The whole report."""
        return {
            "counts": {
                file.kind: {"rows": file.rows, "kept": file.rows - file.dropped, "dropped": file.dropped}
                for file in self.files
            },
            "splits": {file.kind: {split: file.splits[split] for split in SPLITS} for file in self.files},
            "findings": [
                {
                    **{key: rows[0][key] for key in ("file", "rule", "severity", "message")},
                    "count": file.counts[rule],
                    "rows": rows,
                }
                for file in self.files
                for rule, rows in file.shown.items()
            ],
            "leaks": self.leaks[:SHOWN_ROWS],
            "lengths": {
                file.kind: {name: _summary(values) for name, values in file.lengths.items()} for file in self.files
            },
            "distinct_prompts": {file.kind: len(file.prompts) for file in self.files},
            "pairs": next(_pair_figures(file) for file in self.files if file.kind == "preferences"),
        }


def validate_folder(source: Path, output: Path, config: ValidateConfig) -> Report:
    """Check `<kind>.jsonl` of each kind in `source`; write `<kind>/<split>.jsonl` and `quarantine.jsonl` to `output`.

    Files are read twice, a piece at a time: the split of a row depends on all rows.

    Raises:
        DataError: a file is missing.
    """
    output.mkdir(parents=True, exist_ok=True)
    table = SplitTable(config.held_out_share, config.validation_share, config.seed)
    with (output / "quarantine.jsonl").open("w", encoding="utf-8", newline="\n") as quarantine:
        files = [_check_file(kind, source, config, table, quarantine) for kind in KINDS]
    leaks = [_describe_leak(leak.prompt, leak.places) for leak in table.leaks()]
    splits = table.splits()
    for file in files:
        _write_splits(file, source, output, splits)
    return Report(files, leaks)


def _check_file(kind: str, source: Path, config: ValidateConfig, table: SplitTable, quarantine: TextIO) -> FileReport:
    file = FileReport(kind, config.max_dropped_share, lengths={name: array("L") for name in KINDS[kind]})
    seen: set[bytes] = set()
    for lines in chunks(source / file.name):
        bad = _breaking_rows(file, lines, config.max_characters)
        for position, line in enumerate(lines):
            if position in bad:
                quarantine.write(_quarantined(file.name, line, bad[position]))
                file.keys.append(None)
            else:
                _note_repetition(file, file.rows + position, line, seen)
                place = f"{file.name}:{line.number}"
                file.keys.append(table.add(line.row["prompt"], line.row.get("group"), line.row.get("split"), place))
                file.prompts.add(_digest([line.row["prompt"]]))
                if isinstance(objective := line.row.get("objective"), str):
                    file.objectives.add(objective)
                for name, values in file.lengths.items():
                    values.append(len(line.row[name]))
        file.rows += len(lines)
    return file


def _breaking_rows(file: FileReport, lines: list[Line], max_characters: int) -> dict[int, list[str]]:
    """Position → reasons of the rows to drop. All breaches go into the report."""
    sound = [position for position, line in enumerate(lines) if line.fault is None]
    found = [(position, "", line.fault, "error") for position, line in enumerate(lines) if line.fault is not None]
    table = breaches(file.kind, [lines[position].row for position in sound], max_characters)
    columns = (table[name].tolist() for name in ("position", "field", "rule", "severity"))
    found += [(sound[position], *rest) for position, *rest in zip(*columns, strict=True)]
    reasons: dict[int, list[str]] = {}
    for position, name, rule, severity in found:
        file.add(rule, severity, file.rows + position, lines[position].number, name)
        if severity == "error":
            reasons.setdefault(position, []).append(f"{name}: {rule}" if name else rule)
    return reasons


def _quarantined(name: str, line: Line, reasons: list[str]) -> str:
    row = line.row if line.fault is None else line.raw.decode("utf-8", "backslashreplace")
    return _ENCODER.encode({"file": name, "line": line.number, "reasons": reasons, "row": row}) + "\n"


def _note_repetition(file: FileReport, row: int, line: Line, seen: set[bytes]) -> None:
    """Report a row that repeats or contradicts an earlier one. Both stay: repetition is a weight, people disagree."""
    texts = [line.row[name] for name in KINDS[file.kind]]
    digest = _digest(texts)
    if digest in seen:
        file.add("duplicate", "warning", row, line.number, ", ".join(KINDS[file.kind]))
    seen.add(digest)
    if file.kind == "preferences" and _digest([texts[0], texts[2], texts[1]]) in seen:
        file.add("contradiction", "warning", row, line.number, "chosen, rejected")


def _write_splits(file: FileReport, source: Path, output: Path, splits: Mapping[int, Split]) -> None:
    """Write the kept rows byte for byte; every split gets its file, also an empty one."""
    folder = output / file.kind
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        outs: dict[Split, BinaryIO] = {
            split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS
        }
        for (_, line), key in zip(raw_lines(source / file.name), file.keys, strict=True):
            if key is not None:
                outs[splits[key]].write(line if line.endswith(b"\n") else line + b"\n")
                file.splits[splits[key]] += 1


def _describe_leak(prompt: str, places: Mapping[Split, str]) -> str:
    listed = " and ".join(f"{split} ({place})" for split, place in places.items())
    shown = prompt if len(prompt) <= 60 else prompt[:60] + "…"
    return f"Prompt {shown!r} or its group: {listed}. Give these rows one split, or leave `split` out."


def _digest(texts: list[str]) -> bytes:
    return blake2b(_ENCODER.encode(texts).encode(), digest_size=16).digest()


def _summary(values: "array[int]") -> dict[str, float]:
    """Mean and percentiles of lengths, in characters."""
    if not values:
        return {}
    numbers = numpy.frombuffer(values, dtype=numpy.dtype("L"))
    quantiles = {
        name: float(numpy.percentile(numbers, share)) for name, share in (("p50", 50), ("p95", 95), ("max", 100))
    }
    return {"mean": float(numbers.mean()), **quantiles}


def _pair_figures(file: FileReport) -> dict[str, Any]:
    """Share of the pairs whose chosen response is the longer one, equal lengths counting half; and their objectives."""
    chosen, rejected = (numpy.frombuffer(file.lengths[name], dtype=numpy.dtype("L")) for name in ("chosen", "rejected"))
    longer = numpy.mean((chosen > rejected) + 0.5 * (chosen == rejected)) if len(chosen) else None
    return {
        "chosen_longer_share": None if longer is None else float(longer),
        "objectives": sorted(file.objectives)[:SHOWN_ROWS],
    }


if __name__ == "__main__":
    main(validate, ValidateConfig)
