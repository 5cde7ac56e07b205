"""Rows that repeat others, exactly or but for spelling, and rows that say the opposite."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tasks.intake.kinds import Kind
from tasks.intake.repeats.splits import normalised


class Repetition(NamedTuple):
    """How a row repeats an earlier one."""

    rule: str
    """duplicate, duplicate_normalised or contradiction."""
    number: int
    """Of the earlier row, as it was counted with `add`."""


@dataclass
class Repetitions:
    """What rows of one kind have been there. The files of the kind are one data set.

    Rows are kept as 8 bytes each: among a hundred million rows a chance repetition is not expected.
    """

    kind: Kind
    rows: int = 0
    """That were compared."""
    _numbers: dict[int, int] = field(default_factory=dict)
    """Key of the normalised texts → the first such row."""
    _keys: "array[int]" = field(default_factory=lambda: array("q"))
    """Of the texts as they are, for each row."""
    _respelled: dict[int, int] = field(default_factory=dict)
    """Key of the texts as they are → the first such row, where an earlier one differs in spelling."""

    def add(self, row: Mapping[str, Any], texts: Mapping[str, str]) -> list[Repetition]:
        """Take up a row; return how it repeats or contradicts an earlier one.

        Args:
            row: as read; its label counts.
            texts: of its columns.
        """
        number, self.rows = self.rows, self.rows + 1
        label = row.get(self.kind.label) if self.kind.label else None
        parts = [texts[name] for name in self.kind.texts]
        spelled = [normalised(part) for part in parts]
        found = []
        exact, alike = _key(parts, label), _key(spelled, label)
        self._keys.append(exact)
        if (earlier := self._numbers.setdefault(alike, number)) != number:
            if self._keys[earlier] == exact:
                found.append(Repetition("duplicate", earlier))
            elif (same := self._respelled.setdefault(exact, number)) != number:
                found.append(Repetition("duplicate", same))
            else:
                found.append(Repetition("duplicate_normalised", earlier))
        opposite = self._opposite(spelled, label)
        if opposite is not None and (earlier := self._numbers.get(opposite, number)) != number:
            found.append(Repetition("contradiction", earlier))
        return found

    def _opposite(self, parts: list[str], label: Any) -> int | None:
        """Key of the row that says the opposite; None where there is no such thing."""
        if len(self.kind.answers) == 2:
            prompt, chosen, rejected = parts
            return _key([prompt, rejected, chosen], label) if chosen != rejected else None
        return _key(parts, not label) if self.kind.label == "label" else None


def _key(parts: list[str], label: Any) -> int:
    # The hash of this process: keys are never written.
    return hash((*parts, repr(label)))
