"""Stage `validate`: rows that keep the rules go to their split unchanged, the others to quarantine with the reasons."""

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from rlcore.configs import ValidateConfig
from rlcore.errors import DataError
from tasks.intake.findings import SHOWN_ROWS, FileReport
from tasks.intake.garbage import seldom_collected
from tasks.intake.inspection import Broken, Inspection, Usable
from tasks.intake.kinds import KINDS, Kind
from tasks.intake.reading import Line, chunks, find, sources
from tasks.intake.repeats.leaks import NearPrompts, Overlap, described
from tasks.intake.repeats.splits import SplitTable
from tasks.intake.reporting.page import page
from tasks.intake.reporting.profile import Profile
from tasks.intake.reporting.report import faults_of, figures, heading
from tasks.intake.text.tokens import TokenCounter
from tasks.records.artifacts import SPLITS, VALIDATED, VALIDATION, VALIDATION_PAGE, Split, write_json, write_text
from tasks.records.stage import main, stage

NEEDED: tuple[tuple[str, Split], ...] = (("preferences", "train"), ("prompts", "train"), ("prompts", "held_out"))
"""Rows without which nothing can be trained or measured."""

MEASURED: frozenset[tuple[str, Split]] = frozenset(
    {("preferences", "held_out"), ("prompts", "held_out"), ("prompts", "validation")}
)
"""Rows whose prompts have to be text: the stage evaluate compares them, and checkers read them."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def validate(config: ValidateConfig) -> None:
    """Check the raw data and lay it out by kind and split.

    Raises:
        ConfigError: there is no tokenizer where `tokenizer` says, or a kind of rows lies in two places.
        DataError: a file is missing, rows break rules that nothing may break, too many rows were dropped, rows that
            belong together have two splits, or a needed split is empty. The report is written before.
    """
    with stage("validate", config) as run:
        report = validate_folder(Path(config.source), VALIDATED, config)
        found = report.as_json()
        write_json(VALIDATION, found)
        write_text(VALIDATION_PAGE, page(found))
        run.log(0, report.metrics())
        report.raise_faults()
        run.finish()


@dataclass
class KindRows:
    """The usable rows of one kind between the two passes.

    Attributes:
        inspection: what was found in them.
        keys: of each row in the split table.
        numbers: of each row among those of its kind that were compared.
        has_turns: for each row, whether its prompt is a conversation.
        unanswerable: place of the first row with such a prompt in a split that is measured on.
        splits: how many rows went where.
    """

    inspection: Inspection
    keys: "array[int]" = field(default_factory=lambda: array("Q"))
    numbers: "array[int]" = field(default_factory=lambda: array("L"))
    has_turns: bytearray = field(default_factory=bytearray)
    unanswerable: str | None = None
    splits: Counter[Split] = field(default_factory=Counter)


@dataclass
class Report:
    """What was found in all files.

    Attributes:
        kinds: name → rows, in the order of KINDS.
        leaks: rows that belong together in two splits, as they stand in the report.
        near_leaks: prompts that are nearly equal, in two splits; None where they were not looked for.
        overlap: count and share of the prompts to measure on that stand in training rows.
        profile: what the usable rows look like.
        config: what the rows were checked with.
    """

    kinds: Mapping[str, KindRows]
    leaks: list[dict[str, Any]]
    near_leaks: list[dict[str, Any]] | None
    overlap: Mapping[str, Any]
    profile: Profile
    config: ValidateConfig

    @property
    def files(self) -> list[FileReport]:
        """What was found in each file."""
        return [file for rows in self.kinds.values() for file in rows.inspection.files]

    def faults(self) -> list[str]:
        """Reasons why the data cannot be used."""
        config = self.config
        faults = [
            fault
            for kind, rows in self.kinds.items()
            for fault in faults_of(kind, rows.inspection.files, config.max_dropped_share)
        ]
        for what, leaks, policy in (
            ("Equal prompts or groups", self.leaks, config.rules.leak),
            ("Nearly equal prompts", self.near_leaks, config.rules.near_leak),
        ):
            if leaks and policy == "error":
                faults.append(f"{what} stand in two splits ({len(leaks)} times). {leaks[0]['message']}")
        faults += [
            f"{rows.unanswerable}: a prompt of several messages to measure on, where expected is text. Give such rows "
            "the split train, or write the prompt as text."
            for rows in self.kinds.values()
            if rows.unanswerable is not None
        ]
        return faults or [
            f"{kind}: no row for the split {split}. Add rows, or change the shares of validate."
            for kind, split in NEEDED
            if not self.kinds[kind].splits[split]
        ]

    def raise_faults(self) -> None:
        """Raise DataError, one line for each reason why the data cannot be used."""
        if faults := self.faults():
            raise DataError("\n".join([*faults, f"See {VALIDATION} and {VALIDATED / 'quarantine.jsonl'}."]))

    def metrics(self) -> dict[str, float]:
        """The numbers worth a look on every run."""
        numbers: dict[str, float] = {
            "data/leaks": len(self.leaks), "data/dropped_count": sum(file.dropped for file in self.files),
        }  # fmt: skip
        for kind, rows in self.kinds.items():
            files = rows.inspection.files
            numbers[f"data/rows/{kind}"] = sum(file.rows for file in files)
            numbers[f"data/dropped/{kind}"] = sum(file.dropped for file in files)
            for rule in {finding.rule: None for file in files for finding in file.counts}:
                numbers[f"data/{rule}/{kind}"] = sum(file.count(rule) for file in files)
        return numbers

    def as_json(self) -> dict[str, Any]:
        """The whole report."""
        near = None if self.near_leaks is None else {"count": len(self.near_leaks)}
        return {
            "faults": self.faults(),
            **heading(self.config),
            **figures({kind: rows.inspection for kind, rows in self.kinds.items()}, self.profile),
            "splits": {kind: {split: rows.splits[split] for split in SPLITS} for kind, rows in self.kinds.items()},
            "leaks": [*self.leaks, *(self.near_leaks or ())][:SHOWN_ROWS],
            "leak_shares": {**self.overlap, "near": near},
        }


@seldom_collected()
def validate_folder(source: Path, output: Path, config: ValidateConfig) -> Report:
    """Check the rows of each kind in `source`; write `<kind>/<split>.jsonl` and `quarantine.jsonl` to `output`.

    The split of a row depends on all rows, so the usable ones wait in a file beside the output.

    Raises:
        ConfigError: see validate.
        DataError: a file is missing.
    """
    output.mkdir(parents=True, exist_ok=True)
    passes = _Passes(source, output, config)
    # Half of a character has no bytes in UTF-8, but an escape in JSON.
    with (output / "quarantine.jsonl").open(
        "w", encoding="utf-8", errors="backslashreplace", newline="\n"
    ) as quarantine:
        places = {kind: _place(source, kind) for kind in KINDS.values()}
        for kind, place in places.items():
            if place is not None:
                passes.read(kind, place, quarantine)
        return passes.write(quarantine)


def _place(source: Path, kind: Kind) -> Path | None:
    """Where the rows of a kind lie."""
    place = find(source, kind.name)
    if place is None and kind.is_needed:
        raise DataError(
            f"{source / kind.name}.jsonl: no such file. Add it; an empty file says that there are no such rows."
        )
    return place


class _Passes:
    """Reads all rows, then writes the usable ones to their splits."""

    def __init__(self, source: Path, output: Path, config: ValidateConfig):
        self.source, self.output, self.config = source, output, config
        self.counter = None if config.tokenizer is None else TokenCounter(config.tokenizer)
        self.profile = Profile()
        self.table = SplitTable(config.held_out_share, config.validation_share, config.seed)
        self.overlap = Overlap()
        similarity = None if config.rules.near_leak == "off" else config.near_duplicates
        self.near = None if similarity is None else NearPrompts(similarity)
        self.kinds: dict[str, KindRows] = {}

    def read(self, kind: Kind, place: Path, quarantine: TextIO) -> None:
        """The first pass over the files of a kind."""
        rows = self.kinds[kind.name] = KindRows(Inspection(kind, self.config, self.counter, self.profile))
        with self._waiting(kind.name).open("wb") as waiting:
            for source in sources(place, self.config.encoding):
                name = str(source.path.relative_to(self.source))
                file = FileReport(name, kind.name, source.format, source.encoding, self.config.rules)
                rows.inspection.open(file)
                for found in chain.from_iterable(map(rows.inspection.look, chunks(source))):
                    if isinstance(found, Broken):
                        quarantine.write(_quarantined(name, found.line, found.reasons))
                    else:
                        self._take_up(found, rows, f"{name}:{found.line}")
                        waiting.write(found.raw)

    def write(self, quarantine: TextIO) -> Report:
        """The second pass: every split of every kind gets its file, also an empty one."""
        leaks = [described(leak) for leak in self.table.leaks()]
        splits = self.table.splits()
        for name, rows in self.kinds.items():
            dropped = {near.number for near in rows.inspection.near_duplicates() if near.is_dropped}
            folder = self.output / name
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                outs: dict[Split, BinaryIO] = {
                    split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS
                }
                waiting = stack.enter_context(self._waiting(name).open("rb"))
                for raw, key, number, has_turns in zip(waiting, rows.keys, rows.numbers, rows.has_turns, strict=True):
                    if has_turns and (name, splits[key]) in MEASURED and rows.unanswerable is None:
                        rows.unanswerable = rows.inspection.named(number)
                    if number in dropped:
                        line = Line(number, raw, json.loads(raw), None)
                        quarantine.write(_quarantined(name, line, ("near_duplicate",)))
                    else:
                        outs[splits[key]].write(raw)
                        rows.splits[splits[key]] += 1
            self._waiting(name).unlink()
        near_leaks = None if self.near is None else self.near.leaks(splits)
        return Report(self.kinds, leaks, near_leaks, self.overlap.as_json(), self.profile, self.config)

    def _take_up(self, found: Usable, rows: KindRows, place: str) -> None:
        """Note what the second pass has to know of a row that is at `file:line`."""
        split = found.row.get("split")
        key = self.table.add(found.prompt, found.row.get("group"), split, place)
        self.overlap.add(found.prompt, split)
        if self.near is not None:
            self.near.add(found.prompt, key, place)
        rows.keys.append(key)
        rows.numbers.append(found.number)
        rows.has_turns.append(found.has_turns)

    def _waiting(self, kind: str) -> Path:
        return self.output / f".{kind}.waiting"


def _quarantined(name: str, line: Line, reasons: tuple[str, ...]) -> str:
    row = line.row if line.fault is None else line.raw.decode("utf-8", "backslashreplace")
    return _ENCODER.encode({"file": name, "line": line.number, "reasons": reasons, "row": row}) + "\n"


if __name__ == "__main__":
    main(validate, ValidateConfig)
