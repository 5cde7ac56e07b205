"""Texts that are nearly equal: MinHash (Broder 1997) of their runs of words, and candidates by bands of it.

Memory: 4 PERMUTATIONS bytes a text. Two texts of similarity s share one of BANDS bands with probability
1 - (1 - s^w)^BANDS at w = PERMUTATIONS / BANDS hashes a band: 0.9999 at 0.9, 0.98 at 0.8, 0.23 at 0.5.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy
from numpy.typing import NDArray

from tasks.intake.repeats.splits import normalised

PERMUTATIONS = 64
"""Hashes of a text. The standard error of an estimated similarity s is sqrt(s (1 - s) / PERMUTATIONS): 0.05 at 0.8."""
BANDS = 16
WORDS = 3
"""Words of a run; a shorter text is one run."""
SEED = 0
_MULTIPLIER = numpy.uint64(0x9E3779B97F4A7C15)


class NearPair(NamedTuple):
    """Two texts that are nearly equal, numbered as they were added."""

    first: int
    second: int
    similarity: float
    """Estimated Jaccard index of their runs of words."""


class NearDuplicates:
    """Collects texts, then finds those that are nearly equal to another."""

    def __init__(self, least_similarity: float):
        self.least_similarity = least_similarity
        self._hashes = array("I")

    def __len__(self) -> int:
        return len(self._hashes) // PERMUTATIONS

    def add(self, texts: Sequence[str]) -> None:
        """Take up texts."""
        # Loaded where the search is asked for.
        from rensa import RMinHash

        runs, offsets = _runs(texts)
        for row in RMinHash.digest_matrix_from_flat_token_hashes(runs, offsets, PERMUTATIONS, SEED).to_rows():
            self._hashes.extend(row)

    def pairs(self) -> Iterator[NearPair]:
        """Each text that is nearly equal to an earlier one, once, with such an earlier one."""
        if not self._hashes:
            return
        hashes = numpy.frombuffer(self._hashes, dtype=numpy.uint32).reshape(-1, PERMUTATIONS)
        best: dict[int, NearPair] = {}
        for first, second in _candidates(hashes):
            similarity = (hashes[first] == hashes[second]).mean(axis=1)
            for pair in numpy.nonzero(similarity >= self.least_similarity)[0].tolist():
                found = NearPair(int(first[pair]), int(second[pair]), float(similarity[pair]))
                if found.second not in best or found.first < best[found.second].first:
                    best[found.second] = found
        yield from (best[number] for number in sorted(best))


def _runs(texts: Sequence[str]) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]:
    """A hash of each run of words of all texts, and where those of each text begin, and the last of them end."""
    hashes: list[int] = []
    lengths: list[int] = []
    for text in texts:
        words = [crc32(word) for word in normalised(text).encode("utf-8", "surrogatepass").split(b" ")]
        words += [0] * (WORDS - len(words))
        hashes += words
        lengths.append(len(words))
    flat = numpy.array([*hashes, *[0] * WORDS], dtype=numpy.uint64)
    runs = numpy.zeros(len(hashes), dtype=numpy.uint64)
    for place in range(WORDS):
        runs = runs * _MULTIPLIER + flat[place : place + len(hashes)]
    ends = numpy.cumsum(lengths)
    is_whole = numpy.ones(len(hashes), dtype=bool)
    for place in range(1, WORDS):
        is_whole[ends - place] = False
    counts = numpy.array(lengths) - (WORDS - 1)
    return runs[is_whole], numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.uint64)


def _candidates(hashes: NDArray[numpy.uint32]) -> Iterator[tuple[NDArray[numpy.int64], NDArray[numpy.int64]]]:
    """Pairs of rows that are equal in a band: each row with the first of its like, and with the one before it."""
    width = PERMUTATIONS // BANDS
    for band in range(0, PERMUTATIONS, width):
        keys = numpy.ascontiguousarray(hashes[:, band : band + width]).view(numpy.uint64)
        order = numpy.lexsort((numpy.arange(len(keys)), *keys.T))
        ordered = keys[order]
        starts = numpy.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
        firsts = order[starts][numpy.cumsum(starts) - 1]
        repeated = ~starts
        yield firsts[repeated], order[repeated]
        yield order[numpy.nonzero(repeated)[0] - 1], order[repeated]
