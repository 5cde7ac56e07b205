"""A look at the rows of one kind, file after file: which are usable, which were mended, and what was found."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from rlcore.configs import ValidateConfig
from rlcore.errors import DataError
from tasks.intake.findings import FileReport, said
from tasks.intake.kinds import COMMON_COLUMNS, MESSAGES, Kind, as_text, values_of
from tasks.intake.measures import Measures
from tasks.intake.mending import mended
from tasks.intake.piece import Piece
from tasks.intake.reading import BEGIN_BYTES, Line
from tasks.intake.repeats.duplicates import Repetitions
from tasks.intake.repeats.near_duplicates import NearDuplicates, NearPair
from tasks.intake.reporting.profile import Profile
from tasks.intake.rules import REPAIRS, Severity
from tasks.intake.schemas import Breach, breaches, explained
from tasks.intake.text.scripts import main_script
from tasks.intake.text.texts import text_rules
from tasks.intake.text.tokens import END_TOKENS, TokenCounter

Texts = Mapping[str, str]
_Compared = tuple[FileReport, "array[int]", "array[int]", bytearray]
"""A file; and for each row of it that is compared with others its number in the file, its line, whether it repeats."""


class Usable(NamedTuple):
    """A row that can be trained on."""

    number: int
    """Among the rows of its kind that were compared with each other, from 0."""
    line: int
    """Where it begins, from 1."""
    row: Mapping[str, Any]
    prompt: str
    has_turns: bool
    """Whether the prompt is a conversation."""
    raw: bytes
    """One line of JSON Lines: as it was read, or as it was mended."""


class Broken(NamedTuple):
    """A row that cannot."""

    line: Line
    reasons: tuple[str, ...]


class Near(NamedTuple):
    """A row that is nearly equal to an earlier one."""

    number: int
    """See Usable."""
    is_dropped: bool


class Inspection:
    """Looks at rows of one kind.

    Attributes:
        kind: of the rows.
        measures: of the usable rows.
        files: what was found in each file so far.
    """

    def __init__(self, kind: Kind, config: ValidateConfig, counter: TokenCounter | None, profile: Profile):
        self.kind = kind
        self.measures = Measures(kind, "characters" if counter is None else "tokens")
        self.files: list[FileReport] = []
        self.near = None if config.near_duplicates is None else NearDuplicates(config.near_duplicates)
        self._config, self._counter, self._profile = config, counter, profile
        policies = dict(config.rules)
        self._off = frozenset(name for name, policy in policies.items() if policy == "off")
        self._mending = frozenset(name for name in REPAIRS if policies[name] == "repair")
        rules = text_rules(() if counter is None else counter.special_tokens)
        self._text_rules = {name: rule for name, rule in rules.items() if name not in self._off}
        self._repetitions = Repetitions(kind)
        self._known = {*kind.texts, *COMMON_COLUMNS, kind.label, MESSAGES if kind.name == "demonstrations" else None}
        self._objectives: Any = None
        self._compared: list[_Compared] = []

    def open(self, file: FileReport) -> None:
        """Go on with another file."""
        self.files.append(file)
        self._compared.append((file, array("L"), array("L"), bytearray()))

    def look(self, lines: Sequence[Line]) -> Iterator[Usable | Broken]:
        """What becomes of the next rows of the file, one after the other."""
        file = self.files[-1]
        piece = Piece(lines, file)
        _faults(piece)
        self._texts(piece)
        self._form(piece)
        values = {position: values_of(self.kind, row) for position, row in piece.usable()}
        texts = {
            position: {name: as_text(value) or "" for name, value in columns.items()}
            for position, columns in values.items()
        }
        lengths = self._lengths(piece, values, texts)
        scripts = self._scripts(piece, texts)
        numbers = self._repeated(piece, texts)
        kept = [position for position in texts if position not in piece.reasons]
        columns = {name: [texts[position][name] for position in kept] for name in self.kind.texts}
        self.measures.add(
            [piece.rows[position] for position in kept],
            columns,
            {name: [lengths[position][name] for position in kept] for name in self.kind.texts},
            [scripts[position] for position in kept],
        )
        self._profile.add(self.kind.name, [{**piece.rows[position], **texts[position]} for position in kept])
        file.rows += len(lines)
        file.dropped += len(piece.reasons)
        file.repaired += sum(position in piece.changed for position in kept)
        for position, line in enumerate(lines):
            if position in piece.reasons:
                yield Broken(line, tuple(piece.reasons[position]))
            else:
                has_turns = isinstance(values[position]["prompt"], list)
                row, prompt = piece.rows[position], texts[position]["prompt"]
                yield Usable(numbers[position], line.number, row, prompt, has_turns, piece.raw(position))

    def near_duplicates(self) -> Iterator[Near]:
        """Rows that are nearly equal to an earlier one, and no repetition of it. Call it when all rows were seen."""
        for pair in self.near.pairs() if self.near is not None else ():
            (file, rows, lines, repeats), index = self._place(pair.second)
            if repeats[index]:
                continue
            place = (rows[index], lines[index], ", ".join(self.kind.texts))
            severity = file.add("near_duplicate", place, partial(self._nearly, pair))
            if severity == "error":
                file.dropped += 1
            yield Near(pair.second, severity == "error")

    def _texts(self, piece: Piece) -> None:
        """The rules for texts, and their repairs."""
        changed, faults = mended(self.kind, piece.rows, self._text_rules, self._mending)
        piece.rows.update(changed)
        piece.changed.update(changed)
        for fault in faults:
            explain = partial(said, fault.message, fault.text, fault.start)
            severity: Severity | None = "repaired" if fault.is_repaired else None
            piece.note(fault.position, fault.field, fault.rule, explain, severity)

    def _form(self, piece: Piece) -> None:
        """The schema, and what has to be the same in all rows of a file."""
        positions = list(piece.rows)
        rows = list(piece.rows.values())
        for breach in breaches(self.kind, rows, self._config.max_characters, self._off):
            explain = partial(_broken_form, rows[breach.position], breach)
            piece.note(positions[breach.position], breach.field, breach.rule, explain)
        if self.kind.label == "scores":
            self._same_objectives(piece)
        if self.kind.is_closed:
            self._columns(piece)

    def _same_objectives(self, piece: Piece) -> None:
        for position, row in list(piece.usable()):
            scores = row["scores"]
            names = sorted(scores) if isinstance(scores, Mapping) else len(scores)
            if self._objectives is None:
                self._objectives = names
            if names != self._objectives:
                message = f"Found the objectives {names}, in earlier rows {self._objectives}."
                piece.note(position, "scores", "scores", partial(said, message, _cell(row, "scores")))

    def _columns(self, piece: Piece) -> None:
        """Each column that nobody reads, once, where it first appears in a file."""
        for name in sorted(set(chain.from_iterable(piece.rows.values())) - self._known - piece.file.unread):
            position = next(position for position, row in piece.rows.items() if name in row)
            piece.file.unread.add(name)
            piece.note(position, name, "unknown_column", partial(said, "", _cell(piece.rows[position], name)))

    def _lengths(
        self, piece: Piece, values: Mapping[int, Mapping[str, Any]], texts: Mapping[int, Texts]
    ) -> dict[int, dict[str, int]]:
        """Length of each text, in the unit of the measures; and the rules about tokens."""
        counter = self._counter
        if counter is None:
            return {position: {name: len(text) for name, text in some.items()} for position, some in texts.items()}
        counts = {name: counter.counts([some[name] for some in texts.values()]) for name in self.kind.texts}
        lengths = {
            position: {name: counts[name][index] for name in self.kind.texts} for index, position in enumerate(texts)
        }
        for position, some in values.items():
            prompt = lengths[position]["prompt"] + counter.frame
            if isinstance(some["prompt"], list):
                try:
                    prompt = counter.of_messages(some["prompt"])
                except DataError as error:
                    explain = partial(said, str(error), texts[position]["prompt"])
                    piece.note(position, "prompt", "template", explain)
            if self._config.max_tokens is not None:
                self._limits(piece, position, prompt, lengths[position], texts[position])
        return lengths

    def _limits(self, piece: Piece, position: int, prompt: int, lengths: Mapping[str, int], texts: Texts) -> None:
        limit = self._config.max_tokens or 0
        if prompt >= limit:
            explain = partial(said, f"Found {prompt} tokens, limit {limit}.", texts["prompt"])
            piece.note(position, "prompt", "prompt_too_long", explain)
            return
        for name in self.kind.answers:
            if (whole := prompt + lengths[name] + END_TOKENS) > limit:
                explain = partial(said, f"Found {whole} tokens, limit {limit}.", texts[name])
                piece.note(position, name, "response_cut", explain)

    def _scripts(self, piece: Piece, texts: Mapping[int, Texts]) -> dict[int, str | None]:
        """Main script of each prompt; and whether the answers have it too."""
        scripts = {}
        for position, some in texts.items():
            script = scripts[position] = main_script(some["prompt"])
            for name in self.kind.answers if script else ():
                other = main_script(some[name])
                if other is not None and other != script:
                    message = f"The prompt is in {script}, the answer in {other} letters."
                    piece.note(position, name, "language_mix", partial(said, message, some[name]))
        return scripts

    def _repeated(self, piece: Piece, texts: Mapping[int, Texts]) -> dict[int, int]:
        """Compare the rows with all before; return the number of each among the compared ones."""
        file, rows, lines, repeats = self._compared[-1]
        numbers = {}
        for position, some in texts.items():
            if position in piece.reasons:
                continue
            numbers[position] = self._repetitions.rows
            found = self._repetitions.add(piece.rows[position], some)
            rows.append(piece.first + position)
            lines.append(piece.lines[position].number)
            repeats.append(any(each.rule != "contradiction" for each in found))
            for rule, earlier in found:
                field = ", ".join(self.kind.answers if rule == "contradiction" else self.kind.texts)
                piece.note(position, field, rule, partial(self._repeats, earlier, some["prompt"]))
        if self.near is not None:
            self.near.add(["\n".join(texts[position].values()) for position in numbers])
        return numbers

    def _repeats(self, earlier: int, text: str) -> tuple[str, str]:
        return said(f"See {self.named(earlier)}.", text)

    def _nearly(self, pair: NearPair) -> tuple[str, str]:
        return said(f"See {self.named(pair.first)}; similarity {pair.similarity:.2f}.")

    def named(self, number: int) -> str:
        """Place of a compared row, as file:line."""
        (file, _, lines, _), index = self._place(number)
        return f"{file.file}:{lines[index]}"

    def _place(self, number: int) -> tuple[_Compared, int]:
        """The compared rows of the file that a row is in, and its number among them."""
        for compared in self._compared:
            if number < len(compared[1]):
                return compared, number
            number -= len(compared[1])
        raise IndexError(number)


def _faults(piece: Piece) -> None:
    """Rows that could not be read."""
    for position, line in enumerate(piece.lines):
        if (fault := line.fault) is not None:
            piece.file.is_cut |= fault.ends_file
            place = "" if fault.column is None else f"Line {fault.line}, character {fault.column}: "
            explain = partial(said, place + fault.message, line.raw[:BEGIN_BYTES].decode("utf-8", "replace"))
            piece.note(position, "", fault.rule, explain)


def _broken_form(row: Mapping[str, Any], breach: Breach) -> tuple[str, str]:
    return said(explained(row, breach), _cell(row, breach.field))


def _cell(row: Mapping[str, Any], columns: str) -> str:
    """The first text of some columns, or what else stands there."""
    values = [row.get(name) for name in columns.split(", ")]
    text = next((text for value in values if (text := as_text(value))), None)
    return f"{values[0]!r:.1000}" if text is None else text
