"""Which files of this checkout a module loads, read from the source without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import rlcore
from rlcore.backends import DEFAULT_BACKENDS, TRAINERS

PACKAGES = ("rlcore", "tasks")
NAMED = ("tasks.demos",)
"""Packages whose modules a setting names: no source says which."""


def import_closure(module: str, root: Path) -> set[str]:
    """Files below `rlcore/` and `tasks/` that a module needs, itself included, relative to root.

    An import inside a function counts, and so do three roads that the source hides: a name of the lazy `rlcore`
    package, the trainers that `trainer_for("stage")` can load, and the modules of NAMED, of which a setting names one.
    """
    files: dict[str, str] = {}
    unread = [module]
    while unread:
        name = unread.pop()
        path = _file_of(name, root)
        if name in files or path is None:
            continue
        files[name] = path.relative_to(root).as_posix()
        unread += [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 1)]
        unread += _imports(ast.parse(path.read_text(encoding="utf-8")))
        if name in NAMED:
            unread += [f"{name}.{member.stem}" for member in path.parent.glob("*.py") if member != path]
    return set(files.values())


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            assert node.module is not None
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                if node.module == "rlcore" and alias.name in rlcore.__all__:
                    yield getattr(rlcore, alias.name).__module__
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "trainer_for":
            yield from _trainers(node)


def _trainers(call: ast.Call) -> Iterator[str]:
    """The stage's default trainer, or all of its trainers where the backend comes from a setting."""
    stage = ast.literal_eval(call.args[0])
    named = len(call.args) + len(call.keywords) > 1
    yield from (
        module
        for (trained, backend), module in TRAINERS.items()
        if trained == stage and (named or backend == DEFAULT_BACKENDS[stage])
    )


def _file_of(name: str, root: Path) -> Path | None:
    """The file of a module of ours; None for others, and for names that are no modules."""
    if name.split(".")[0] not in PACKAGES:
        return None
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None
