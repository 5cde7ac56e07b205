"""Checks of preference pairs as they come: splits, columns, lists, prompts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import datasets

from rlcore.errors import ConfigError, DataError

COLUMNS = ("prompt", "chosen", "rejected")

Columns = Mapping[str, Sequence[Any]]
"""By name, one entry for each pair."""
PairsT = TypeVar("PairsT")

logger = logging.getLogger(__name__)


def preference_splits(data: Mapping[str, datasets.Dataset], reward: object) -> dict[str, Columns]:
    """The columns of `data["train"]` and, where it has rows, of `data["validation"]`.

    Args:
        data: by split; others are not read.
        reward: what a trainer on pairs was given as reward source, which has to be None.

    Raises:
        ConfigError: there is a reward source.
        DataError: there is no split train.
    """
    if reward is not None:
        raise ConfigError("Found a reward source, expected none: preference pairs are the only signal. Leave it out.")
    if "train" not in data:
        raise DataError(f"Found the splits {sorted(data)}, expected train. Name the preference pairs so.")
    splits = [split for split in ("train", "validation") if split == "train" or len(data.get(split, ()))]
    return {split: data[split].to_dict() for split in splits}


def read_each(splits: Mapping[str, Columns], read: Callable[[Columns], PairsT]) -> dict[str, PairsT]:
    """`read(columns)` of each split.

    Raises:
        DataError: what `read` raised, with the name of the split in front.
    """
    pairs: dict[str, PairsT] = {}
    for split, columns in splits.items():
        try:
            pairs[split] = read(columns)
        except DataError as error:
            raise DataError(f"Split {split}: {error}") from error
    return pairs


def preference_columns(columns: Columns) -> list[Sequence[Any]]:
    """The columns prompt, chosen and rejected. Names of others, which are not read, are logged.

    Raises:
        DataError: one is missing, or see require_pairs.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(f"Found no column {', '.join(missing)}, expected {', '.join(COLUMNS)}. Rename the columns.")
    ignored = sorted(set(columns) - set(COLUMNS))
    if ignored:
        logger.warning("The columns %s are not read, only %s are.", ", ".join(ignored), ", ".join(COLUMNS))
    found = [columns[name] for name in COLUMNS]
    require_pairs(*found)
    return found


def require_pairs(prompts: Sequence[Any], chosen: Sequence[Any], rejected: Sequence[Any]) -> None:
    """Let lists pass that have one entry for each pair.

    Raises:
        DataError: one is a text, or they differ in length or are empty.
    """
    for name, values in (("prompts", prompts), ("chosen", chosen), ("rejected", rejected)):
        if isinstance(values, str):
            raise DataError(f"{name}: found the text {values!r}, expected a list of texts. Put it into a list.")
    if not len(prompts) == len(chosen) == len(rejected):
        raise DataError(
            f"Found {len(prompts)} prompts, {len(chosen)} chosen and {len(rejected)} rejected responses, "
            "expected equal numbers. Pass one of each for every pair."
        )
    if not len(prompts):
        raise DataError("Found 0 preference pairs, expected at least one.")


def require_prompt(row: int, prompt: object) -> None:
    """Let text pass that is not blank, and a list of chat messages.

    Raises:
        DataError: it is something else.
    """
    if isinstance(prompt, str):
        fits = bool(prompt.strip())
    else:
        fits = isinstance(prompt, list) and all(map(_is_message, prompt))
    if not fits:
        raise DataError(f"Row {row}, prompt: found {prompt!r}, expected text or chat messages. Drop or mend that row.")


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
