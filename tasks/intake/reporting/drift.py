"""How data differ from earlier data: two reports of the stage `validate` in, plain sentences with a level out.

A difference has a level only where it is beyond what chance makes of two samples of the same data.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log, log2, sqrt
from pathlib import Path
from typing import Any, Literal

from rlcore.errors import DataError
from tasks.intake.reporting.profile import EDGES, PARTS, WORDS
from tasks.intake.reporting.prompt_sketch import Estimate, from_hex, unseen_share
from tasks.records.artifacts import read_json

Level = Literal["fine", "look", "alarm"]
LEVELS: tuple[Level, ...] = ("fine", "look", "alarm")

BOUNDS: Mapping[str, tuple[float, float]] = {
    "rows": (0.2, 0.5),
    "new prompts": (0.5, 0.95),
    "lost prompts": (0.1, 0.5),
    "length": (0.1, 0.25),
    "vocabulary": (0.04, 0.1),
    "labels": (0.05, 0.15),
    "length bias": (0.05, 0.15),
}
"""Measure → from which value on it is worth a look, and an alarm.

- rows: share of the earlier number that is gone.
- new prompts: share of the prompts that the earlier data do not have; lost prompts: the other way round.
- length: largest difference of the cumulative distributions of lengths in characters, 0..1 (Kolmogorov-Smirnov).
- vocabulary: Jensen-Shannon divergence of the shares of words, in bits, 0..1. Two random halves of one data set are
  0.001 to 0.02 apart, two data sets of the same language 0.1 to 0.2.
- labels: share of the rows whose label would have to change (total variation).
- length bias: change of the share of pairs whose chosen answer is the longer one, equal lengths counting half.
"""

CHANCE = 0.001
"""How often chance alone may give a difference a level."""
_DEVIATIONS = 3.29
"""Standard deviations that chance exceeds so rarely."""
_BURSTS = 8
"""A word that stands in a row stands there again: counts of words vary that many times as much as single draws."""

SHOWN_WORDS = 5


@dataclass(frozen=True)
class Shift:
    """One difference between two sets of data.

    Attributes:
        kind: of the rows.
        measure: a key of BOUNDS, with the column where it is of one; or "kind", for rows that one of the two lacks.
        level: "fine", "look" or "alarm".
        value: of the measure; None where there is none.
        sentence: what it means.
    """

    kind: str
    measure: str
    level: Level
    value: float | None
    sentence: str


def read_report(path: Path) -> Mapping[str, Any]:
    """A report of the stage `validate`, to compare with.

    Raises:
        DataError: the file is missing, or is something else.
    """
    try:
        report = read_json(path)
    except (UnicodeDecodeError, IsADirectoryError, RecursionError):
        report = None
    profiles = report.get("profile") if isinstance(report, Mapping) else None
    if not isinstance(profiles, Mapping) or not all(
        isinstance(profile, Mapping) and profile.keys() >= PARTS for profile in profiles.values()
    ):
        raise DataError(
            f"{path}: found no profile of data, expected a validation.json. Name one that this version wrote."
        )
    return report


def compare(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[Shift]:
    """What differs, in the order of the kinds.

    Args:
        report: contents of validation.json.
        earlier: the same of the data that it is compared with.
    """
    new, old = (_kinds_with_rows(each) for each in (report, earlier))
    shifts = [
        Shift(kind, "kind", "look", None, f"{kind}: the earlier data had no such rows.")
        for kind in new
        if kind not in old
    ]
    shifts += [
        Shift(kind, "kind", "alarm", None, f"{kind}: no such rows; the earlier data had {old[kind]['rows']:,}.")
        for kind in old
        if kind not in new
    ]
    for kind in new:
        if kind in old:
            shifts += _compare_kind(kind, new[kind], old[kind])
    return shifts


def worst(shifts: Iterable[Shift]) -> Level:
    """The highest level; "fine" where there is no difference."""
    return max((shift.level for shift in shifts), key=LEVELS.index, default="fine")


def in_words(shifts: Sequence[Shift]) -> str:
    """The differences for a terminal, one a line, the worst first."""
    if not shifts:
        return "nothing to compare"
    return "\n".join(f"{shift.level:5}  {shift.sentence}" for shift in by_level(shifts))


def by_level(shifts: Iterable[Shift]) -> list[Shift]:
    """The worst first."""
    return sorted(shifts, key=lambda shift: -LEVELS.index(shift.level))


def _kinds_with_rows(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {kind: profile for kind, profile in report.get("profile", {}).items() if profile["rows"]}


def _compare_kind(kind: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Shift]:
    yield _rows(kind, new["rows"], old["rows"])
    new_prompts, old_prompts = from_hex(new["prompt_sketch"]), from_hex(old["prompt_sketch"])
    yield from _prompts(kind, "new prompts", unseen_share(new_prompts, old_prompts), "of the prompts are new")
    yield from _prompts(kind, "lost prompts", unseen_share(old_prompts, new_prompts), "of the earlier prompts are gone")
    for column in new["lengths"]:
        if column in old["lengths"]:
            yield _length(kind, column, *(_counts(each["lengths"][column]["counts"]) for each in (new, old)))
    yield _vocabulary(kind, new, old)
    for name in sorted(set(new["label_balance"]) | set(old["label_balance"])):
        measure = _length_bias if name == "longer_answer" else _labels
        yield measure(kind, name, *(each["label_balance"].get(name, {}) for each in (new, old)))


def _level(measure: str, value: float, noise: float = 0.0) -> Level:
    look, alarm = BOUNDS[measure]
    if value < look or value <= noise:
        return "fine"
    return "look" if value < alarm else "alarm"


def _rows(kind: str, new: int, old: int) -> Shift:
    gone = 1 - new / old
    sentence = f"{kind}: {new:,} usable rows, {old:,} before ({-gone:+z.0%})."
    return Shift(kind, "rows", _level("rows", gone), gone, sentence)


def _prompts(kind: str, measure: str, found: Estimate | None, what: str) -> Iterator[Shift]:
    if found is not None:
        error = f" ± {found.error:.1%}" if found.error else ""
        level = _level(measure, found.share - _DEVIATIONS * found.error)
        yield Shift(kind, measure, level, found.share, f"{kind}: {found.share:.1%}{error} {what}.")


def _length(kind: str, column: str, new: Mapping[int, int], old: Mapping[int, int]) -> Shift:
    sizes = sum(new.values()), sum(old.values())
    edges = sorted({*new, *old})
    cumulative = [
        [below / size for below in accumulate(counts.get(edge, 0) for edge in edges)]
        for counts, size in zip((new, old), sizes, strict=True)
    ]
    distance = max(abs(first - second) for first, second in zip(*cumulative, strict=True))
    noise = sqrt(-log(CHANCE / 2) / 2 * _inverse(*sizes))
    sentence = (
        f"{kind}: the median {column} has {_median(new):,.0f} characters, {_median(old):,.0f} before; the "
        f"distributions are {distance:.2f} apart."
    )
    return Shift(kind, f"length of {column}", _level("length", distance, noise), distance, sentence)


def _vocabulary(kind: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> Shift:
    distance = divergence(new["words"], old["words"])
    words = len({*new["words"], *old["words"]})
    noise = _BURSTS * words * _inverse(new["words_counted"], old["words_counted"]) / (8 * log(2))
    changed = f"; most changed: {', '.join(most_changed)}" if (most_changed := _most_changed(new, old)) else ""
    sentence = f"{kind}: the shares of words are {distance:.3f} bits apart{changed}."
    return Shift(kind, "vocabulary", _level("vocabulary", distance, noise), distance, sentence)


def _labels(kind: str, name: str, new: Mapping[str, int], old: Mapping[str, int]) -> Shift:
    sizes = sum(new.values()), sum(old.values())
    if not all(sizes):
        when = "the earlier rows have none" if sizes[0] else "only the earlier rows have some"
        return Shift(kind, f"labels {name}", "look", None, f"{kind}: labels {name}: {when}.")
    names = sorted({*new, *old})
    shares = [[counts.get(label, 0) / size for label in names] for counts, size in zip((new, old), sizes, strict=True)]
    moved = sum(abs(first - second) for first, second in zip(*shares, strict=True)) / 2
    pooled = [(new.get(label, 0) + old.get(label, 0)) / sum(sizes) for label in names]
    noise = _DEVIATIONS / 2 * sum(sqrt(share * (1 - share) * _inverse(*sizes)) for share in pooled)
    largest = max(range(len(names)), key=lambda index: abs(shares[0][index] - shares[1][index]))
    sentence = (
        f"{kind}: {name} moved for {moved:.1%} of the rows, most for {names[largest]!r}: {shares[0][largest]:.1%}, "
        f"{shares[1][largest]:.1%} before."
    )
    return Shift(kind, f"labels {name}", _level("labels", moved, noise), moved, sentence)


def _length_bias(kind: str, name: str, new: Mapping[str, int], old: Mapping[str, int]) -> Shift:
    share, before = (
        (counts.get("chosen", 0) + counts.get("equal", 0) / 2) / sum(counts.values()) for counts in (new, old)
    )
    noise = _DEVIATIONS * sqrt(_inverse(sum(new.values()), sum(old.values()))) / 2
    sentence = f"{kind}: the chosen answer is the longer one in {share:.1%} of the pairs, {before:.1%} before."
    return Shift(kind, "length bias", _level("length bias", abs(share - before), noise), share - before, sentence)


def divergence(new: Mapping[str, float], old: Mapping[str, float]) -> float:
    """Jensen-Shannon divergence of two lists of the most frequent words, in bits: 0 equal, 1 nothing in common.

        JS = H((p + q) / 2) - (H(p) + H(q)) / 2

    What is not listed counts as one more word. A word that one list lacks may stand right below its end: it gets the
    share that makes the divergence smallest.

    Args:
        new, old: word to its share of all words.
    """
    words = {*new, *old}
    p, q = ([_share(word, own, other) for word in words] for own, other in ((new, old), (old, new)))
    p, q = ([*shares, max(1 - sum(shares), 0.0)] for shares in (p, q))
    middle = [(first + second) / 2 for first, second in zip(p, q, strict=True)]
    return max(_entropy(middle) - (_entropy(p) + _entropy(q)) / 2, 0.0)


def _share(word: str, own: Mapping[str, float], other: Mapping[str, float]) -> float:
    if word in own or len(own) < WORDS:
        return own.get(word, 0.0)
    return min(*own.values(), other[word])


def _entropy(shares: Iterable[float]) -> float:
    """In bits."""
    return -sum(share * log2(share) for share in shares if share > 0)


def _most_changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Up to five words whose share moved most, with the direction."""
    first, second = new["words"], old["words"]
    moved = {word: _share(word, first, second) - _share(word, second, first) for word in {*first, *second}}
    most = sorted(moved, key=lambda word: (-abs(moved[word]), word))[:SHOWN_WORDS]
    return [f"{word} {moved[word]:+.2%}" for word in most if moved[word]]


def _counts(text: Mapping[str, int]) -> dict[int, int]:
    return {int(edge): count for edge, count in text.items()}


def _median(counts: Mapping[int, int]) -> float:
    """In the bin that holds it, as if the lengths lay evenly between its edges."""
    half, below = sum(counts.values()) / 2, 0
    for lower in sorted(counts):
        if below + counts[lower] >= half:
            upper = next((edge for edge in EDGES if edge > lower), lower)
            return float(lower + (upper - 1 - lower) * (half - below) / counts[lower])
        below += counts[lower]
    return 0.0


def _inverse(first: int, second: int) -> float:
    return 1 / max(first, 1) + 1 / max(second, 1)
