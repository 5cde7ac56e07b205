"""What a reward function returned, and how rewards are weighted: checked before anything learns from it."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Real
from typing import Any

from rlcore.errors import ConfigError, DataError

ScoreCheck = Callable[[Any, int, str], list[float]]
"""`check(scores, count, source)`: the scores that a source returned for so many responses, as floats."""


def checked_number(value: object, source: str) -> float:
    """A finite number as a float. Booleans and arrays or tensors of one element count as numbers.

    Raises:
        DataError: anything else, None, NaN and infinity among it. Names the source.
    """
    number = _without_array(value, source)
    if not isinstance(number, Real) or not math.isfinite(number):
        raise DataError(f"{source} returned {number!r}, expected a finite number. Return a float for every response.")
    return float(number)


def checked_scores(scores: Any, count: int, source: str) -> list[float]:
    """Finite numbers, one for each of `count` responses, from a list, an array or a tensor.

    Raises:
        DataError: no sequence, another length, or an element that is no finite number. Names the source and the row.
    """
    listed = _checked_list(scores, count, source)
    return [checked_number(score, f"{source}, response {row},") for row, score in enumerate(listed)]


def checked_scores_or_nan(scores: Any, count: int, source: str) -> list[float]:
    """As checked_scores, but None and NaN are allowed and become NaN: this response has no score.

    Raises:
        DataError: as there; infinity is an error here too.
    """
    listed = _checked_list(scores, count, source)
    return [_number_or_nan(score, f"{source}, response {row},") for row, score in enumerate(listed)]


def checked_counts(prompts: Sequence[object], responses: Sequence[object], metadata: Sequence[object] | None) -> None:
    """Let equally many prompts, responses and metadata rows pass.

    Raises:
        DataError: they differ, or prompts or responses are no list.
    """
    for name, texts in (("prompts", prompts), ("responses", responses)):
        if isinstance(texts, str) or not isinstance(texts, Sized):
            raise DataError(f"{name}: found {texts!r}, expected a list of texts. Put it into a list.")
    counts = {len(prompts), len(responses), len(responses if metadata is None else metadata)}
    if len(counts) > 1:
        rows = "no" if metadata is None else len(metadata)
        raise DataError(
            f"Found {len(prompts)} prompts, {len(responses)} responses and {rows} metadata rows. "
            "Pass one prompt and one row for each response."
        )


def own_copies(
    prompts: Sequence[str], responses: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None
) -> tuple[list[str], list[str], list[Mapping[str, Any]] | None]:
    """The same rows for one reward function alone: what it does to them reaches no other one, and no later call."""
    return list(prompts), list(responses), None if metadata is None else copy.deepcopy(list(metadata))


def checked_weights(names: Iterable[str], weights: Mapping[str, float] | None) -> dict[str, float]:
    """The weight of each named reward; 1 where none is given.

    Raises:
        ConfigError: there is no reward, a weight belongs to none of them, or a weight is no finite number.
    """
    known = list(names)
    if not known:
        raise ConfigError("Found no rewards, expected at least one named reward.")
    given = dict(weights or {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"Found weights for {', '.join(unknown)}, expected names among {', '.join(known)}.")
    for name, weight in given.items():
        if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight):
            raise ConfigError(f"Weight of {name}: found {weight!r}, expected a finite number.")
    return {name: float(given.get(name, 1.0)) for name in known}


def _number_or_nan(value: object, source: str) -> float:
    number = _without_array(value, source)
    if number is None or (isinstance(number, Real) and math.isnan(number)):
        return math.nan
    return checked_number(number, source)


def _without_array(value: Any, source: str) -> object:
    """The one element of an array or tensor; anything else as it is."""
    if not hasattr(value, "item"):
        return value
    try:
        element: object = value.item()
    except (RuntimeError, ValueError):
        raise DataError(f"{source} returned {value!r}, expected one number. Reduce it to one.") from None
    return element


def _checked_list(scores: Any, count: int, source: str) -> Sequence[Any]:
    listed = scores.tolist() if hasattr(scores, "tolist") else scores
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise DataError(f"{source} returned {scores!r}, expected a list of {count} numbers, one for each response.")
    if len(listed) != count:
        raise DataError(f"{source} returned {len(listed)} scores for {count} responses. Return one for each.")
    return listed
