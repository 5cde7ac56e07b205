"""The reward functions that have a name, each by its formula. A word is what stands between blanks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.errors import DataError
from rlcore.results import RewardSource
from rlcore.reward_functions.answers import answers_equal, states_answer
from rlcore.reward_functions.checks import checked_counts

FULL_LENGTH = 50
"""Words of a response that earns the whole length reward."""

ANSWER_COLUMN = "answer"
"""Column of a prompt's row that holds its right answer."""

Rows = Sequence[Mapping[str, Any]]


def length_score(response: str) -> float:
    """min(words / 50, 1), within 0 .. 1."""
    return min(len(response.split()) / FULL_LENGTH, 1.0)


def length_penalty_score(response: str) -> float:
    """max(1 - |words - 50| / 50, -1): 0 for no word, 1 at 50 words, 0 at 100 and -1 from 150 on."""
    return max(1.0 - abs(len(response.split()) - FULL_LENGTH) / FULL_LENGTH, -1.0)


def formatting_score(response: str) -> float:
    """1 where a number is stated as the answer (see `answers.states_answer`), else 0."""
    return float(states_answer(response))


def correctness(prompts: Sequence[str], responses: Sequence[str], metadata: Rows | None = None) -> list[float]:
    """1 for a response whose answer equals the prompt's `answer` (see `answers.answers_equal`), else 0.

    Raises:
        DataError: the numbers of rows differ, or a row has no `answer`.
    """
    checked_counts(prompts, responses, metadata)
    rows: Rows = metadata if metadata is not None else [{}] * len(prompts)
    for index, row in enumerate(rows):
        if row.get(ANSWER_COLUMN) is None:
            raise DataError(
                f"Prompt {index}: found the columns {', '.join(row) or '(none)'}, expected {ANSWER_COLUMN!r} with the "
                "right answer. Add that column to the prompts, or use another reward function."
            )
    return [
        float(answers_equal(response, str(row[ANSWER_COLUMN]))) for response, row in zip(responses, rows, strict=True)
    ]


def _each(name: str, score: Callable[[str], float]) -> RewardSource:
    def source(prompts: Sequence[str], responses: Sequence[str], metadata: Rows | None = None) -> list[float]:
        checked_counts(prompts, responses, metadata)
        return [score(response) for response in responses]

    source.__name__, source.__doc__ = name, score.__doc__
    return source


REWARD_FUNCTIONS: dict[str, RewardSource] = {
    "default": _each("default", length_score),
    "length_penalty": _each("length_penalty", length_penalty_score),
    "correctness": correctness,
    "formatting": _each("formatting", formatting_score),
}
"""Reward sources by name."""
