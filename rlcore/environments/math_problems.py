"""Problems in arithmetic, with answers that are worked out or given."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcore.environments.multi_objective import MultiObjectiveRewardEnv
from rlcore.errors import ConfigError, DataError
from rlcore.reward_functions import answers_equal, formatting_score

PROBLEMS = (
    "What is 2 + 2?",
    "What is 5 * 3?",
    "What is 17 - 9?",
    "What is 12 + 30?",
    "What is 7 * 8?",
    "What is 100 - 58?",
    "What is 3 - 11?",
    "What is 4 * 25?",
)

MAX_CHARACTERS = 300
"""Longer calculations are not worked out: reading them could exhaust the stack."""

_EXPRESSION = re.compile(r"[0-9(-][0-9 .()+*/-]*")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def create_math_problem_env(
    tokenizer: PreTrainedTokenizerBase, problems: Mapping[str, str] | None = None, **kwargs: Any
) -> MultiObjectiveRewardEnv:
    r"""An environment of problems with one right answer.

    Reward: 1.0 * correctness + 0.1 * formatting. Correctness is 1 for the right answer (see
    `reward_functions.answers_equal`), formatting 1 for a number stated as the answer: in \boxed{}, or behind "Answer:"
    or the like. The right answer so stated earns 1.1, the right answer alone 1.0, a wrong one 0.1 at most.

    Args:
        tokenizer: of the policy.
        problems: right answers by prompt. By default a few sums, differences and products.
        **kwargs: max_length, stop_sequences and temperature, as for TextGenerationEnv.

    Raises:
        ConfigError: problems are no mapping, there is none, or a setting is unknown or out of range.
        DataError: an answer is no text.
    """
    if problems is not None:
        _check_answers(problems)

    def correctness(prompt: str, generated: str, full_text: str) -> float:
        gold = arithmetic_value(prompt) if problems is None else _given_answer(problems, prompt)
        return float(answers_equal(generated, gold))

    return MultiObjectiveRewardEnv(
        tokenizer,
        list(PROBLEMS if problems is None else problems),
        reward_components={
            "correctness": correctness,
            "formatting": lambda _, generated, __: formatting_score(generated),
        },
        reward_weights={"correctness": 1.0, "formatting": 0.1},
        **kwargs,
    )


def arithmetic_value(prompt: str) -> str:
    """The value of the longest calculation with + - * / and brackets in a prompt: an integer or a fraction as text.

    Raises:
        DataError: there is none, it has more than 300 characters, or it divides by 0.
    """
    text = prompt.replace("×", "*").replace("÷", "/").replace("−", "-")
    written = max(_EXPRESSION.findall(text), key=len, default="").strip(" .")
    if len(written) > MAX_CHARACTERS:
        raise DataError(
            f"Found a calculation of {len(written)} characters, expected at most {MAX_CHARACTERS}: {written[:40]!r}... "
            "Pass problems with their answers instead."
        )
    try:
        calculation = ast.parse(written, mode="eval").body
        if not isinstance(calculation, ast.BinOp):
            raise SyntaxError(f"{written!r} calculates nothing")
        return str(_evaluate(calculation))
    except (SyntaxError, ZeroDivisionError) as error:
        raise DataError(
            f"Found no calculation in {prompt!r}: {error}. Pass problems with their answers instead."
        ) from None


def _check_answers(problems: object) -> None:
    if not isinstance(problems, Mapping):
        raise ConfigError(f"problems: found a {type(problems).__name__}, expected answers by prompt. Pass a mapping.")
    for prompt, answer in problems.items():
        if not isinstance(answer, str):
            raise DataError(f"The answer to {prompt!r}: found {answer!r}, expected text. Write it as {str(answer)!r}.")


def _given_answer(problems: Mapping[str, str], prompt: str) -> str:
    if prompt not in problems:
        raise DataError(f"Found the prompt {prompt!r}, expected one of the {len(problems)} problems. Add its answer.")
    return problems[prompt]


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_evaluate(left), _evaluate(right))
    raise SyntaxError(f"{ast.unparse(node)} is no sum, difference, product or quotient")
