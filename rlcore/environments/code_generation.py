"""Tasks in Python whose answers are parsed and never executed."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcore.environments.code_text import style_score, syntax_score
from rlcore.environments.multi_objective import MultiObjectiveRewardEnv

TASKS = (
    "Write a Python function that returns the factorial of a number.",
    "Write a Python function that tells whether a word is a palindrome.",
    "Write a Python function that returns the largest number of a list.",
    "Write a Python function that counts the vowels of a text.",
)


def create_code_generation_env(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str] | None = None, **kwargs: Any
) -> MultiObjectiveRewardEnv:
    """An environment of programming tasks that reads code and never runs it.

    Reward: 1.0 * syntax + 0.1 * style, the formulas of `code_text.syntax_score` and `code_text.style_score`. To run
    code against tests, build a MultiObjectiveRewardEnv with the component `passed_tests`.

    Args:
        tokenizer: of the policy.
        prompts: tasks; by default four small ones.
        **kwargs: max_length, stop_sequences and temperature, as for TextGenerationEnv.

    Raises:
        ConfigError: there is no task, or a setting is unknown or out of range.
    """
    return MultiObjectiveRewardEnv(
        tokenizer,
        TASKS if prompts is None else prompts,
        reward_components={
            "syntax": lambda _, generated, __: syntax_score(generated),
            "style": lambda _, generated, __: style_score(generated),
        },
        reward_weights={"syntax": 1.0, "style": 0.1},
        **kwargs,
    )
