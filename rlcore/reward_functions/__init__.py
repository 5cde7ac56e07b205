"""Rewards that are computed from texts: named formulas, checking of answers, functions of one's own.

Loads no torch.
"""

from rlcore.reward_functions.answers import answer_value, answers_equal, states_answer
from rlcore.reward_functions.checks import (
    ScoreCheck,
    checked_counts,
    checked_number,
    checked_scores,
    checked_scores_or_nan,
    checked_weights,
    own_copies,
)
from rlcore.reward_functions.named import (
    REWARD_FUNCTIONS,
    correctness,
    formatting_score,
    length_penalty_score,
    length_score,
)
from rlcore.reward_functions.sources import (
    WeightedSum,
    as_reward_source,
    imported_object,
    responses_per_prompt,
    reward_function_named,
    weighted_sum,
)

__all__ = [
    "REWARD_FUNCTIONS",
    "ScoreCheck",
    "WeightedSum",
    "answer_value",
    "answers_equal",
    "as_reward_source",
    "checked_counts",
    "checked_number",
    "checked_scores",
    "checked_scores_or_nan",
    "checked_weights",
    "correctness",
    "formatting_score",
    "imported_object",
    "length_penalty_score",
    "length_score",
    "own_copies",
    "responses_per_prompt",
    "reward_function_named",
    "states_answer",
    "weighted_sum",
]
