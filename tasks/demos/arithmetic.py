"""Sums of two digits in three wordings, answered by a hurried person: data on which reinforcement learning shows.

A group is a cell (wording, a, b). Held-out cells are kept from every stage, so a held-out sum was never seen in that
wording but usually in another one: the measure is transfer across wordings, not unseen arithmetic. The demonstrations
often drop the ten of a sum of ten or more, so imitation alone answers such sums wrongly; the preference pairs know
better.

The checker `gold` reads the column `answer`, which no trainer gets.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from rlcore.configs import DemoDataConfig
from rlcore.errors import ConfigError, DataError
from tasks.records.artifacts import write_rows

WORDINGS = (
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "{name} has {a} {thing} and gets {b} more. How many {thing} now?",
)
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "keys", "pens", "shells", "stamps")

STYLES = {
    "plain": "The answer is {n}.",
    "polite": "Sure! The answer is {n}.",
    "terse": "{n}",
    "vague": "I think it is {n}, maybe.",
}
DEMONSTRATION_STYLE_WEIGHTS = {"plain": 30, "polite": 30, "terse": 20, "vague": 20}
STYLE_UTILITY = {"plain": 1.0, "polite": 1.1, "terse": 0.0, "vague": 0.0}
RIGHT_UTILITY = 2.0

OFF_BY_ONE_SHARE = 0.1
SAME_STYLE_SHARE = 0.4
ANNOTATOR_SHARPNESS = 3.0
CLEAR_UTILITY_GAP = 1.0
LARGEST_SUM = 18
# Rows, not distinct prompts: repetitions keep the cells of the wordings without a name as likely as the others.
TRAIN_PROMPTS_PER_CELL = 9
VALIDATION_PAIRS_PER_PROMPT = 4

_RIGHT_FORMAT = re.compile(r"(?:Sure! )?The answer is ([0-9]+)\.")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Cell:
    """A sum in one wording: the unit by which rows are split."""

    wording: int
    a: int
    b: int

    @property
    def total(self) -> int:
        """The right answer."""
        return self.a + self.b

    @property
    def group(self) -> str:
        """Name of the cell in the column `group`."""
        return f"plus-{self.wording}-{self.a}-{self.b}"


def generate(config: DemoDataConfig, folder: Path) -> None:
    """Write demonstrations.jsonl, preferences.jsonl and prompts.jsonl to `folder`; equal configs write equal bytes.

    Raises:
        ConfigError: the shares leave no cell to train on, or none to hold out.
    """
    train, validation, held_out = split_cells(config)
    prompts = list(_prompts(config, {"train": train, "validation": validation, "held_out": held_out}))
    asked = [row for row in prompts if row["split"] == "validation"]
    write_rows(folder / "demonstrations.jsonl", _demonstrations(config, train))
    write_rows(
        folder / "preferences.jsonl",
        chain(
            _preferences(config, train),
            _validation_preferences(config, asked),
            _held_out_preferences(config, held_out),
        ),
    )
    write_rows(folder / "prompts.jsonl", prompts)


def gold(row: Mapping[str, Any], response: str, finished: bool) -> Mapping[str, float]:
    """Check a response against the column `answer` of its prompt.

    Args:
        row: a row of prompts.jsonl.
        response: the text without the end token.
        finished: whether the response ended with the end token.

    Returns:
        gold: 1 when the form is right and the number too. number_right: 1 when the response holds exactly one number
        and that is the answer, whatever the form. format_right: 1 when the response ended and reads "The answer is N.",
        with or without "Sure! " before it. Numbers are compared as they are written: 07 is not 7.

    Raises:
        DataError: the row has no answer.
    """
    if "answer" not in row:
        raise DataError(f"Prompt {row.get('prompt')!r} has no `answer` to check. Add it, or set evaluate.gold to null.")
    answer = str(row["answer"])
    right_format = _RIGHT_FORMAT.fullmatch(response) if finished else None
    return {
        "gold": float(right_format is not None and right_format[1] == answer),
        "number_right": float(_NUMBER.findall(response) == [answer]),
        "format_right": float(right_format is not None),
    }


def split_cells(config: DemoDataConfig) -> tuple[list[Cell], list[Cell], list[Cell]]:
    """All cells in a seeded order, as train, validation and held-out cells."""
    cells = [Cell(wording, a, b) for wording in range(len(WORDINGS)) for a in range(10) for b in range(10)]
    Random(1000 + config.seed).shuffle(cells)
    held_out = round(config.held_out_share * len(cells))
    validation = round(config.validation_share * len(cells))
    if held_out < 1 or held_out + validation >= len(cells):
        raise ConfigError(
            f"demo_data: held_out_share={config.held_out_share} and validation_share={config.validation_share} take "
            f"{held_out} and {validation} of {len(cells)} cells. Expected a held-out cell, and one left to train on."
        )
    return cells[held_out + validation :], cells[held_out : held_out + validation], cells[:held_out]


def _demonstrations(config: DemoDataConfig, cells: list[Cell]) -> Iterable[dict[str, Any]]:
    random = Random(f"{config.seed}/demonstrations")
    styles, weights = zip(*DEMONSTRATION_STYLE_WEIGHTS.items(), strict=True)
    for _ in range(config.demonstrations):
        cell = random.choice(cells)
        prompt = _ask(cell, random)
        number = _hurried_sum(cell.total, config.slip_share, random)
        (style,) = random.choices(styles, weights)
        yield {"prompt": prompt, "response": STYLES[style].format(n=number), "group": cell.group, "split": "train"}


def _preferences(config: DemoDataConfig, cells: list[Cell]) -> Iterable[dict[str, Any]]:
    random = Random(f"{config.seed}/preferences")
    for _ in range(config.preference_pairs):
        cell = random.choice(cells)
        prompt = _ask(cell, random)
        yield _pair(cell.group, prompt, *_annotated_pair(cell.total, random), "train")


def _validation_preferences(config: DemoDataConfig, asked: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Pairs about the validation prompts, so that the checker knows the prompts that trainers on pairs answer."""
    random = Random(f"{config.seed}/validation preferences")
    for row in asked:
        for _ in range(VALIDATION_PAIRS_PER_PROMPT):
            yield _pair(row["group"], row["prompt"], *_annotated_pair(row["answer"], random), "validation")


def _held_out_preferences(config: DemoDataConfig, cells: list[Cell]) -> Iterable[dict[str, Any]]:
    random = Random(f"{config.seed}/held-out preferences")
    for _ in range(config.held_out_pairs):
        cell = random.choice(cells)
        prompt = _ask(cell, random)
        better, worse, _ = _answer_pair(cell.total, CLEAR_UTILITY_GAP, random)
        yield _pair(cell.group, prompt, better, worse, "held_out")


def _prompts(config: DemoDataConfig, splits: Mapping[str, list[Cell]]) -> Iterable[dict[str, Any]]:
    random = Random(f"{config.seed}/prompts")
    for split, cells in splits.items():
        repeats = TRAIN_PROMPTS_PER_CELL if split == "train" else config.prompts_per_group
        rows = [
            {"prompt": _ask(cell, random), "group": cell.group, "split": split, "answer": cell.total}
            for cell in cells
            for _ in range(repeats)
        ]
        random.shuffle(rows)
        yield from rows


def _ask(cell: Cell, random: Random) -> str:
    name, thing = random.choice(NAMES), random.choice(THINGS)
    return WORDINGS[cell.wording].format(a=cell.a, b=cell.b, name=name, thing=thing)


def _hurried_sum(total: int, slip_share: float, random: Random) -> int:
    """What a hurried person writes: the ten is often dropped, a smaller sum is rarely off by one."""
    share = slip_share if total >= 10 else OFF_BY_ONE_SHARE
    return _slip(total, random) if random.random() < share else total


def _slip(total: int, random: Random) -> int:
    if total >= 10:
        return total - 10
    return random.choice((total - 1, total + 1)) if total > 0 else 1


def _annotated_pair(total: int, random: Random) -> tuple[str, str]:
    """The answer that the annotator chose, and the other one."""
    better, worse, gap = _answer_pair(total, 0.0, random)
    agrees = random.random() < 1 / (1 + math.exp(-ANNOTATOR_SHARPNESS * gap))
    return (better, worse) if agrees else (worse, better)


def _answer_pair(total: int, smallest_gap: float, random: Random) -> tuple[str, str, float]:
    """The better answer, the worse one, and the gap of their utilities: above 0 and at least `smallest_gap`."""
    styles = list(STYLES)
    same_style = random.random() < SAME_STYLE_SHARE
    while True:
        first_style = random.choice(styles)
        second_style = first_style if same_style else random.choice(styles)
        first, first_utility = _answer(total, first_style, random)
        second, second_utility = _answer(total, second_style, random)
        gap = first_utility - second_utility
        if gap != 0 and abs(gap) >= smallest_gap:
            return (first, second, gap) if gap > 0 else (second, first, -gap)


def _answer(total: int, style: str, random: Random) -> tuple[str, float]:
    """An answer, wrong half of the time, and its utility to the annotator."""
    number = total
    if random.random() < 0.5:
        number = _slip(total, random) if random.random() < 0.5 else _other_number(total, random)
    return STYLES[style].format(n=number), RIGHT_UTILITY * (number == total) + STYLE_UTILITY[style]


def _other_number(total: int, random: Random) -> int:
    # Wrong answers from the whole range: a reward model that saw near misses only is fooled by the far ones.
    return random.choice([number for number in range(LARGEST_SUM + 1) if number != total])


def _pair(group: str, prompt: str, chosen: str, rejected: str, split: str) -> dict[str, str]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "group": group, "split": split}
