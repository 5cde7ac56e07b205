"""Names of metrics: those that sources report, and those that docs/metrics.md explains.

`<>` in a name stands for several.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "metrics.md"
TOPICS = (
    "best", "data", "dpo", "gate", "kl", "memory", "optim", "orpo", "policy", "progress", "response", "reward",
    "reward_model", "sft", "throughput", "time", "validation", "validation_gold", "value", "win",
)  # fmt: skip
"""First parts of the names; what a checker measures has none of them."""
PATHS = "data/raw"

_NAME = re.compile(rf"(?:{'|'.join(TOPICS)})/(?:\w|/|<>)+")
_QUOTED = re.compile(r"`([^`\s]+)`")


def reported(source: str) -> set[str]:
    """Names in the text of a Python file; the parts that an f-string fills in become `<>`."""
    return {name for name in _strings(ast.parse(source)) if _NAME.fullmatch(name) and not name.startswith(PATHS)}


def explained(measures: Sequence[str]) -> set[str]:
    """Names in the first column of the page's tables.

    Args:
        measures: what `<measure>` stands for; any other `<what>` becomes `<>`.
    """
    rows = (line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    names = {name for row in rows for name in _QUOTED.findall(row)}
    names = {name.replace("<measure>", measure) for name in names for measure in measures}
    return {re.sub(r"<\w+>", "<>", name) for name in names}


def matches(name: str, patterns: set[str]) -> bool:
    """Whether a name is one of the patterns."""
    filled = name.replace("<>", "x")
    return any(re.fullmatch(r"[\w/]+".join(map(re.escape, each.split("<>"))), filled) for each in patterns)


def unexplained(names: set[str], measures: Sequence[str]) -> set[str]:
    """Names of an actual run that the page does not explain. Ends of intervals and `_non_finite` go along."""
    page = explained(measures)
    return {name for name in names if not matches(re.sub(r"_(low|high|non_finite)$", "", name), page)}


def _strings(tree: ast.Module) -> Iterator[str]:
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "<>" for part in node.values)
