"""The pages that people paste from: their blocks, run in order, and what the prints in them promise."""

import ast
import contextlib
import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT
from tests.support.metric_names import TOPICS

LIBRARY = ROOT / "docs" / "library.md"
GUIDES = {name: ROOT / "docs" / "guides" / f"{name}.md" for name in ("sft", "ppo", "grpo", "dpo", "reward", "orpo")}
PAGES = {"readme": ROOT / "README.md", "library": LIBRARY, **GUIDES}

_FENCED = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
_METRIC = re.compile(rf"`((?:{'|'.join(TOPICS)})/\w+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block and where it begins."""

    page: Path
    first_line: int
    code: str


def blocks(page: Path, language: str = "python") -> list[Block]:
    """The blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _FENCED.finditer(text)
        if found[1] == language
    ]


def commands(page: Path) -> list[list[str]]:
    """The words of each shell block, a command."""
    return [shlex.split(block.code.replace("\\\n", " ")) for block in blocks(page, "sh")]


def run(page: Path, count: int | None = None) -> dict[str, Any]:
    """Run the first `count` Python blocks of a page, or all, in the working directory, as if they had been pasted.

    A block that begins with the name of a file is also written to it, as the page tells its reader to.

    Returns:
        the names that are defined afterwards.

    Raises:
        AssertionError: a print does not say what its comment says.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page)[:count]:
        if named := _FILE_NAME.match(block.code):
            Path(named[1]).write_text(block.code, encoding="utf-8")
        _run_block(block, names)
    return names


def sections(page: Path) -> dict[str, str]:
    """Text by second-order heading."""
    _, *parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """Cells of the tables in a text, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    starts = [index for index, line in enumerate(lines) if line.startswith("|---")]
    headings = {*starts, *(start - 1 for start in starts)}
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for index, line in enumerate(lines)
        if index not in headings
    ]


def metric_names(page: Path) -> set[str]:
    """Names of numbers in a page."""
    return set(_METRIC.findall(page.read_text(encoding="utf-8")))


def dead_links(page: Path) -> list[str]:
    """Links to a file that is not there, or to a heading that it does not have."""
    return [
        f"{path}#{heading}" if heading else path
        for path, heading in _LINK.findall(page.read_text(encoding="utf-8"))
        if not _leads_somewhere(page.parent / path if path else page, heading)
    ]


def _leads_somewhere(target: Path, heading: str) -> bool:
    if not target.exists():
        return False
    titles = _HEADING.findall(target.read_text(encoding="utf-8")) if heading else []
    return not heading or heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def _run_block(block: Block, names: dict[str, Any]) -> None:
    """Statement by statement, so that what is printed belongs to one of them. Stack traces show the page's lines."""
    tree = ast.parse(block.code)
    ast.increment_lineno(tree, block.first_line - 1)
    promised = {line + block.first_line - 1: text for line, text in _promises(block.code)}
    for statement in tree.body:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(ast.Module([statement], []), block.page.name, "exec"), names)
        if _is_print(statement) and statement.end_lineno in promised:
            expected, found = promised[statement.end_lineno], said.getvalue().strip()
            where = f"{block.page.name}:{statement.end_lineno}"
            assert _says(expected, found), f"{where}: the page says {expected!r}, found {found!r}"


def _promises(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.removeprefix("#").strip()


def _is_print(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def _says(expected: str, found: str) -> bool:
    """Whether the output is the promised one; `…` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), found, re.DOTALL) is not None
