"""Code in a text: found, parsed and looked at, never executed."""

import ast
import re
import warnings

MAX_CODE_CHARACTERS, MAX_LINE_CHARACTERS = 20_000, 100

_FENCE = re.compile(r"^[ \t]*```[^\n]*$", re.MULTILINE)
_SNAKE_CASE = re.compile(r"[a-z_][a-z0-9_]*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_in(text: str) -> str:
    """The last block between lines of three backticks, up to the end where it is not closed; without one, the text."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return text
    opening = fences[(len(fences) - 1) // 2 * 2]
    closing = next((fence.start() for fence in fences if fence.start() > opening.start()), len(text))
    return text[opening.end() : closing].strip("\n")


def syntax_score(text: str) -> float:
    """1 for Python that does something, else 0.

    The code has to parse and to hold a statement other than `pass` and bare names or constants, so that prose of one
    word, comments and docstrings earn nothing.
    """
    tree = _parsed(code_in(text))
    return float(tree is not None and any(_acts(statement) for statement in tree.body))


def style_score(text: str) -> float:
    """Mean of four marks over the functions of the code, within 0 .. 1; 0 where there is none or it does not parse.

    The marks of a function: it has a docstring; all its parameters and its result have type hints; its name and its
    parameters are in snake_case; none of its lines is longer than 100 characters.
    """
    code = code_in(text)
    tree = _parsed(code)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)] if tree is not None else []
    if not functions:
        return 0.0
    lines = code.splitlines()
    return sum(_marks(function, lines) for function in functions) / (4 * len(functions))


def _marks(function: Function, lines: list[str]) -> int:
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    parameters = [parameter for parameter in every if parameter is not None]
    hinted = [parameter for parameter in parameters if parameter.annotation or parameter.arg in ("self", "cls")]
    names = [function.name, *(parameter.arg for parameter in parameters)]
    own_lines = lines[function.lineno - 1 : function.end_lineno]
    return sum(
        (
            bool(ast.get_docstring(function)),
            function.returns is not None and len(hinted) == len(parameters),
            all(_SNAKE_CASE.fullmatch(name) for name in names),
            all(len(line) <= MAX_LINE_CHARACTERS for line in own_lines),
        )
    )


def _acts(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant | ast.Name)
    return not isinstance(statement, ast.Pass)


def _parsed(code: str) -> ast.Module | None:
    # Longer code could nest so deeply that the parser needs more stack than there is.
    if len(code) > MAX_CODE_CHARACTERS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
