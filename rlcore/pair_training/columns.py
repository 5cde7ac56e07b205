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


def require_splits(data: object) -> None:
    """Let rows by split pass, with a split train.

    Raises:
        DataError: they are something else.
    """
    if not isinstance(data, Mapping) or "train" not in data:
        found = f"the splits {sorted(data)}" if isinstance(data, Mapping) else f"a {type(data).__name__}"
        raise DataError(
            f"Found {found}, expected train among the splits of a datasets.DatasetDict. Make one: "
            "datasets.DatasetDict(train=rows)."
        )


def preference_splits(data: Mapping[str, datasets.Dataset], reward: object) -> dict[str, Columns]:
    """The columns of `data["train"]` and, where it has rows, of `data["validation"]`.

    Args:
        data: by split; others are not read.
        reward: what a trainer on pairs was given as reward source, which has to be None.

    Raises:
        ConfigError: there is a reward source.
        DataError: there is no split train, or a split is no data set.
    """
    if reward is not None:
        raise ConfigError("Found a reward source, expected none: preference pairs are the only signal. Leave it out.")
    require_splits(data)
    splits = {split: data[split] for split in ("train", "validation") if split in data}
    for split, rows in splits.items():
        if not isinstance(rows, datasets.Dataset):
            raise DataError(
                f"Split {split}: found a {type(rows).__name__}, expected a datasets.Dataset. Make one, such as "
                "datasets.Dataset.from_list(rows)."
            )
    return {split: rows.to_dict() for split, rows in splits.items() if split == "train" or len(rows)}


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
        DataError: one is no list, or they differ in length or are empty.
    """
    require_lists({"prompts": prompts, "chosen": chosen, "rejected": rejected})
    if not len(prompts) == len(chosen) == len(rejected):
        raise DataError(
            f"Found {len(prompts)} prompts, {len(chosen)} chosen and {len(rejected)} rejected responses, "
            "expected equal numbers. Pass one of each for every pair."
        )
    if not len(prompts):
        raise DataError("Found 0 preference pairs, expected at least one.")


def require_lists(columns: Mapping[str, object]) -> None:
    """Let lists pass, and what is read like one. A text and a generator are none.

    Raises:
        DataError: one is something else. Names it.
    """
    for name, values in columns.items():
        if isinstance(values, str):
            raise DataError(f"{name}: found the text {values!r}, expected a list of texts. Put it into a list.")
        is_list = hasattr(values, "__len__") and hasattr(values, "__getitem__") and not isinstance(values, Mapping)
        if not is_list:
            raise DataError(f"{name}: found a {type(values).__name__}, expected a list. Make it one.")


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
