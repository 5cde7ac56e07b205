"""What data look like, in a few kilobytes a kind: enough to say later how other data differ from them.

Memory and the size of the result are bounded. The order of the rows does not matter, unless there are very many labels.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from tasks.intake.kinds import KINDS, PROMPT
from tasks.intake.reporting.prompt_sketch import PromptSketch, to_hex

PARTS = frozenset({"rows", "prompt_sketch", "words", "words_counted", "lengths", "label_balance"})
"""Of the profile of a kind."""
WORDS = 500
"""Words whose share is kept: the most frequent."""
WORD_LIMIT = 500_000
"""Words of one kind that are counted; beyond it a sample of the rows is taken."""
LABELS = 50
"""Different labels that are told apart; what comes later is counted as OTHER."""
OTHER = "(other)"
BINS_PER_DOUBLING = 4
"""Of the histogram of lengths, so that two neighbouring edges differ by 19 %."""
EDGES = numpy.unique(numpy.round(2.0 ** (numpy.arange(24 * BINS_PER_DOUBLING + 1) / BINS_PER_DOUBLING)))
"""Edges of the bins in characters: 1, 2, 3, 4, 5, 6, 7, 8, 10, … 16,777,216. A bin holds its lower edge."""

_TEXT_LIMIT = 20_000
_LETTERS_LIMIT = 40
# Scripts that put no blank between words count letter by letter.
_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")


class Profile:
    """Collects what usable rows look like, by kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, _KindProfile] = {}

    def add(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take up usable rows.

        Args:
            kind: a key of KINDS.
            rows: each text column of the kind holds plain text, as `kinds.as_text` gives it. `label`, `objective` and
                `scores` are counted where a row has them; other columns are not looked at.
        """
        if kind not in self._kinds:
            self._kinds[kind] = _KindProfile(kind)
        self._kinds[kind].add(rows)

    def as_json(self) -> dict[str, Any]:
        """Kind → its profile, as `drift` reads it."""
        return {kind: profile.as_json() for kind, profile in self._kinds.items()}


class _KindProfile:
    def __init__(self, kind: str) -> None:
        self.columns = KINDS[kind].texts
        self.rows = 0
        self.sketch = PromptSketch()
        self.words = _WordSample()
        self.histograms: dict[str, NDArray[numpy.int64]] = {}
        self.balance: dict[str, Counter[str]] = {}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows += len(rows)
        columns = {name: [row[name] for row in rows] for name in self.columns}
        lengths = {name: numpy.fromiter(map(len, texts), dtype=numpy.int64) for name, texts in columns.items()}
        self.sketch.add(columns[PROMPT])
        self.words.add(list(map("\n".join, zip(*columns.values(), strict=True))))
        for name, values in lengths.items():
            self.histograms[name] = self.histograms.get(name, 0) + _histogram(values)
        for name, labels in _labels(rows):
            self._count_labels(name, labels)
        if "rejected" in lengths:
            longer = numpy.sign(lengths["chosen"] - lengths["rejected"])
            self._count_labels("longer_answer", [("rejected", "equal", "chosen")[sign + 1] for sign in longer])

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "prompt_sketch": to_hex(self.sketch.hashes()),
            "words": self.words.shares(),
            "words_counted": self.words.total,
            "lengths": {
                name: {"unit": "characters", "counts": _by_lower_edge(counts)}
                for name, counts in self.histograms.items()
            },
            "label_balance": {name: dict(sorted(counts.items())) for name, counts in self.balance.items() if counts},
        }

    def _count_labels(self, name: str, labels: Iterable[str]) -> None:
        counts = self.balance.setdefault(name, Counter())
        for label, count in Counter(labels).items():
            counts[label if label in counts or len(counts) < LABELS else OTHER] += count


class _WordSample:
    """Counts of words in all rows, or in a half, a quarter, … of them that does not depend on their order.

    A row's rank is the number of zeros at the end of its hash: half of the rows have 0, a quarter 1, and so on. Where
    too many words are counted, the rows of the lowest rank are left out.
    """

    def __init__(self) -> None:
        self._of_rank: dict[int, Counter[str]] = {}
        self._lowest = 0
        self.total = 0

    def add(self, texts: Sequence[str]) -> None:
        """Take up the texts of rows, one for each row."""
        ranks = _ranks(texts)
        for row in numpy.flatnonzero(ranks >= self._lowest).tolist():
            # The lowest rank rises meanwhile.
            if (rank := int(ranks[row])) >= self._lowest:
                self._count(rank, texts[row][:_TEXT_LIMIT])

    def shares(self) -> dict[str, float]:
        """The most frequent words with their share of all words counted; of equal ones the first in the alphabet."""
        counts: Counter[str] = sum(self._of_rank.values(), Counter())
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:WORDS]
        return {word: round(count / self.total, 7) for word, count in most}

    def _count(self, rank: int, text: str) -> None:
        words = _WORD.findall(text.casefold())
        self._of_rank.setdefault(rank, Counter()).update(word[:_LETTERS_LIMIT] for word in words)
        self.total += len(words)
        while self.total > WORD_LIMIT and len(self._of_rank) > 1:
            lowest = min(self._of_rank)
            self.total -= self._of_rank.pop(lowest).total()
            self._lowest = lowest + 1


def _ranks(texts: Sequence[str]) -> NDArray[numpy.int64]:
    """Number of zeros at the end of a hash of each text, at most 32."""
    sums = numpy.array([zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=numpy.uint64)
    # The lower bits of a checksum alone are too alike for like texts; a product spreads them.
    digests = (sums * numpy.uint64(0x9E3779B97F4A7C15)) >> numpy.uint64(32) | numpy.uint64(1 << 32)
    return numpy.log2(digests & (~digests + numpy.uint64(1))).astype(numpy.int64)


def _labels(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """What people said of the rows, by column."""
    for name in ("label", "objective"):
        yield name, [_name(row[name]) for row in rows if isinstance(row.get(name), bool | str)]
    scores = [row["scores"] for row in rows if row.get("scores")]
    named = (each.items() if isinstance(each, Mapping) else enumerate(each) for each in scores)
    yield "scored", [_name(name) for each in named for name, score in each if score is not None]


def _name(value: bool | int | str) -> str:
    """A label as JSON and UTF-8 take it."""
    return str(value).lower()[:_LETTERS_LIMIT].encode("utf-8", "replace").decode("utf-8")


def _histogram(lengths: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    bins = numpy.searchsorted(EDGES, lengths, side="right")
    return numpy.bincount(bins, minlength=len(EDGES) + 1)


def _by_lower_edge(counts: NDArray[numpy.int64]) -> dict[str, int]:
    """Lower edge of each bin that is not empty → its count."""
    lower = [0, *map(int, EDGES)]
    return {str(lower[index]): int(counts[index]) for index in counts.nonzero()[0]}
