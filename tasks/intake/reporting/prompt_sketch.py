"""A set of prompts in a few kilobytes, for asking how many of another set are new.

A k-minimum-values sketch keeps the k smallest of the 64-bit hashes of a set's elements. Up to the largest of them it
knows the whole set, so up to the smaller of two such limits both sets are known: a uniform sample of their elements
(Beyer et al. 2007, "On synopses for distinct-value estimation under multiset operations"). Repetition and order change
nothing, and a set of fewer than k elements is held as a whole.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import inf, sqrt
from typing import NamedTuple

from tasks.intake.repeats.splits import normalised

SIZE = 2048
"""k. The relative error of a count of distinct elements is 1 / sqrt(k - 2), here 2.2 %."""
SPACE = 2.0**64
"""Number of hashes."""
_DIGITS = 16


class Estimate(NamedTuple):
    """A share that was measured on a sample."""

    share: float
    error: float
    """Its standard error; 0 where the sample is the whole set."""
    size: int
    """Elements of the sample."""


class PromptSketch:
    """The k smallest hashes of prompts, after normalisation as for the splits.

    Args:
        size: k.
    """

    def __init__(self, size: int = SIZE):
        self.size = size
        self._hashes: set[int] = set()
        self._limit = SPACE

    def add(self, prompts: Iterable[str]) -> None:
        """Take up prompts."""
        for prompt in prompts:
            # Half a surrogate pair has no UTF-8; rows that hold one are not usable, but must not end the run here.
            text = normalised(prompt).encode("utf-8", "surrogatepass")
            digest = int.from_bytes(blake2b(text, digest_size=8).digest())
            if digest < self._limit:
                self._hashes.add(digest)
                if len(self._hashes) > 2 * self.size:
                    self._hashes = set(self.hashes())
                    self._limit = max(self._hashes)

    def hashes(self) -> list[int]:
        """The k smallest, in order; all of them where there are fewer."""
        return sorted(self._hashes)[: self.size]


def distinct_count(hashes: list[int], size: int = SIZE) -> float:
    """Number of distinct elements: (k - 1) / U_k, U_k being the k-th smallest hash as a share of all hashes.

    That is without bias (Bar-Yossef et al. 2002; Beyer et al. 2007). Exact for a set of fewer than k elements.
    """
    return len(hashes) if len(hashes) < size else (size - 1) / (hashes[size - 1] / SPACE)


def unseen_share(new: list[int], old: list[int], size: int = SIZE) -> Estimate | None:
    """Share of the elements of one set that are not in another; None where the sample is empty.

    Args:
        new: hashes of the set that is asked about.
        old: hashes of the set that is known.
        size: k of both.
    """
    limit = min(_known_up_to(new, size), _known_up_to(old, size))
    sample = [digest for digest in new if digest <= limit]
    if not sample:
        return None
    share = len(set(sample) - set(old)) / len(sample)
    rest = 1 - len(sample) / distinct_count(new, size)
    return Estimate(share, sqrt(share * (1 - share) / len(sample) * max(rest, 0.0)), len(sample))


def to_hex(hashes: list[int]) -> str:
    """Hashes as one text, 16 hexadecimal digits each."""
    return "".join(f"{digest:016x}" for digest in hashes)


def from_hex(text: str) -> list[int]:
    """What `to_hex` wrote."""
    return [int(text[start : start + _DIGITS], 16) for start in range(0, len(text), _DIGITS)]


def _known_up_to(hashes: list[int], size: int) -> float:
    """The largest hash up to which every element is known."""
    return inf if len(hashes) < size else hashes[-1]
