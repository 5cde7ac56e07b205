"""What was found in the rows of one file: counts of everything, and the first rows of each rule."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlcore.configs import ValidationRules
from tasks.intake.rules import ADVICE, REPAIRS, Severity, policy_of, severity_of
from tasks.intake.text.private_data import redacted

SHOWN_ROWS = 100
"""Rows that are listed for each rule and file; the rest is counted."""
EXCERPT = 200
"""Characters of a row that are shown."""
_BEFORE = 60
"""Of these, characters in front of the fault."""
_WINDOW = 1_000
"""Characters on both sides of a fault among which private data are looked for."""

Explain = Callable[[], tuple[str, str]]
"""What is wrong with a row, and a part of it. Asked for rows that are shown alone."""


class Finding(NamedTuple):
    """What breaches are counted by."""

    rule: str
    severity: Severity


@dataclass(eq=False)
class FileReport:
    """One file of rows.

    Attributes:
        file: its name.
        kind: of its rows.
        format, encoding: that it was read as.
        rules: the policies.
        rows: that were read, faulty ones included.
        dropped: rows that are not usable.
        repaired: rows that were mended.
        counts: how often each rule was broken.
        shown: the first rows that break it, as they stand in the report.
        is_cut: whether a part of the file could not be read at all.
        unread: columns that nobody reads.
    """

    file: str
    kind: str
    format: str
    encoding: str
    rules: ValidationRules
    rows: int = 0
    dropped: int = 0
    repaired: int = 0
    counts: Counter[Finding] = field(default_factory=Counter)
    shown: dict[Finding, list[dict[str, Any]]] = field(default_factory=dict)
    is_cut: bool = False
    unread: set[str] = field(default_factory=set)
    _known: dict[tuple[str, Severity | None], Finding | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file = writable(self.file)

    def add(
        self, rule: str, place: tuple[int, int, str], explain: Explain, severity: Severity | None = None
    ) -> Severity | None:
        """Count a breach of a rule.

        Args:
            rule: that is broken.
            place: row (from 0), line (from 1), and column.
            explain: what the report says of it.
            severity: None takes that of the rule's policy.

        Returns:
            How bad it is; None where the rule is off.
        """
        finding = self._finding(rule, severity)
        if finding is None:
            return None
        self.counts[finding] += 1
        if self.counts[finding] <= SHOWN_ROWS:
            message, part = explain()
            row, line, column = place
            entry = {"row": row, "line": line, "field": writable(column), "message": message, "excerpt": part}
            self.shown.setdefault(finding, []).append(entry)
        return finding.severity

    def _finding(self, rule: str, severity: Severity | None) -> Finding | None:
        # Remembered, as there may be millions of breaches.
        if (rule, severity) not in self._known:
            policy = policy_of(rule, self.rules)
            self._known[rule, severity] = None if policy == "off" else Finding(rule, severity or severity_of(policy))
        return self._known[rule, severity]

    def count(self, rule: str) -> int:
        """How often a rule was broken."""
        return sum(count for finding, count in self.counts.items() if finding.rule == rule)

    def refused(self) -> list[Finding]:
        """Broken rules that nothing may break."""
        return [finding for finding in self.counts if policy_of(finding.rule, self.rules) == "error"]

    def as_json(self) -> dict[str, Any]:
        """The file, in a line."""
        return {
            "file": self.file, "kind": self.kind, "format": self.format, "encoding": self.encoding, "rows": self.rows,
            "valid": self.rows - self.dropped, "dropped": self.dropped, "repaired": self.repaired,
        }  # fmt: skip

    def findings(self) -> list[dict[str, Any]]:
        """Broken rules with their first rows."""
        return [
            {
                "file": self.file, "kind": self.kind, "rule": finding.rule, "severity": finding.severity,
                "policy": policy_of(finding.rule, self.rules), "message": advice(finding),
                "count": self.counts[finding], "rows": rows,
            }
            for finding, rows in self.shown.items()
        ]  # fmt: skip


def said(message: str, text: str = "", start: int = 0) -> tuple[str, str]:
    """What the report says of a fault at a place of a text; with `partial`, an Explain."""
    return message, excerpt(text, start)


def advice(finding: Finding) -> str:
    """What to do about a finding, or what was done."""
    if finding.severity == "repaired":
        return REPAIRS[finding.rule]
    return ADVICE.get(finding.rule, ADVICE["readable"])


def excerpt(text: str, start: int = 0) -> str:
    """At most EXCERPT characters of a text around a place, without what is private."""
    before = redacted(text[max(0, start - _WINDOW) : start])
    after = redacted(text[start : start + _WINDOW])
    first = max(0, len(before) - _BEFORE)
    room = EXCERPT - 2 - (len(before) - first)
    is_whole = len(after) <= room and len(text) <= start + _WINDOW
    part = f"{'…' if first or start > _WINDOW else ''}{before[first:]}{after[:room]}{'' if is_whole else '…'}"
    return writable(part)


def writable(text: str) -> str:
    """A text without halves of characters, which no file can hold; each becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()
