"""Pure measures of responses: intervals that respect groups, diversity, paired comparison."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[numpy.float64]


class GroupBootstrap:
    """Percentile bootstrap that resamples whole groups (Efron & Tibshirani 1993, §8).

    Responses to one prompt, and prompts of one group, resemble each other; resampling them one by one would pretend to
    more evidence than there is. One object draws once, so that all its intervals are of the same resamples.

    Args:
        groups: the group of each value.
        samples: number of resamples.
        seed: of the draws.
    """

    def __init__(self, groups: Sequence[str], samples: int, seed: int):
        names, self._index = numpy.unique(numpy.asarray(groups, dtype=object).astype(str), return_inverse=True)
        self._count = len(names)
        draws = numpy.random.default_rng(seed).integers(self._count, size=(samples, self._count))
        # How often each group is in each resample, [samples, groups].
        self._weights = numpy.stack([numpy.bincount(draw, minlength=self._count) for draw in draws])

    def interval(self, values: Numbers) -> tuple[float, float]:
        """Where the mean of values lies with 95 % confidence: 2.5th and 97.5th percentile over the resamples.

        Args:
            values: one number for each entry of `groups`; any that is not finite makes both ends NaN.
        """
        low, high = numpy.percentile(self._means(values), [2.5, 97.5])
        return float(low), float(high)

    def standard_error(self, values: Numbers) -> float:
        """Deviation of the mean of values over the resamples; arguments as in interval."""
        return float(numpy.std(self._means(values)))

    def _means(self, values: Numbers) -> NDArray[numpy.float64]:
        """The mean of values in each resample, [samples]."""
        numbers = numpy.asarray(values, dtype=float)
        sums = numpy.bincount(self._index, weights=numbers, minlength=self._count)
        sizes = numpy.bincount(self._index, minlength=self._count)
        return (self._weights @ sums) / (self._weights @ sizes)


def group_of(row: Mapping[str, Any]) -> str:
    """The group that a row names, else its prompt."""
    return str(row.get("group", row["prompt"]))


def mean(values: Numbers) -> float:
    """Arithmetic mean; NaN without values."""
    return float(numpy.mean(values)) if len(values) else math.nan


def distinct_n(texts: Iterable[str], n: int) -> float:
    """Distinct n-grams of words over all n-grams of all texts (Li et al. 2016). NaN where no text has n words.

    Falls when responses repeat themselves or each other. It also falls with the number of texts: compare equal counts.
    """
    grams = [gram for text in texts for gram in _grams(text.split(), n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def compare(ours: Numbers, theirs: Numbers) -> dict[str, float]:
    """Shares of pairs in which ours is larger, smaller, equal: `win`, `lose`, `tie`; they add up to 1.

    Args:
        ours, theirs: numbers of paired responses, of equal length.
    """
    difference = numpy.asarray(ours, dtype=float) - numpy.asarray(theirs, dtype=float)
    signs = numpy.sign(difference)
    return {name: mean((signs == sign).astype(float)) for name, sign in (("win", 1), ("lose", -1), ("tie", 0))}


def perplexity(logprobs: Iterable[Numbers]) -> float:
    """exp of minus the mean log-probability (nats) of all tokens of all texts."""
    tokens = [float(value) for text in logprobs for value in text]
    return math.exp(-mean(tokens)) if tokens else math.nan


def smoothed(values: Sequence[float], width: int = 3) -> list[float]:
    """Each value averaged with its neighbours: a centred window of `width` (odd), shorter at both ends."""
    half = width // 2
    return [mean(values[max(0, middle - half) : middle + half + 1]) for middle in range(len(values))]


def _grams(words: Sequence[str], n: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)
