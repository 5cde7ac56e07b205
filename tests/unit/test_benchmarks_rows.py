"""Every row gives its arms what they take, read from their source: a peer's arm cannot be imported here."""

import ast
from pathlib import Path

import pytest

from benchmarks.comparison import Comparison
from benchmarks.process import ROOT
from benchmarks.rows import ROWS
from benchmarks.workloads import columns, even_share, pairs, prompts, text

COMPARISONS = [row for row in ROWS if isinstance(row, Comparison)]


def arguments_of(arm: str) -> tuple[set[str], set[str]]:
    """All arguments of an arm, and those that it has to be given."""
    module, _, name = arm.partition(":")
    source = Path(ROOT, "benchmarks", "arms", f"{module}.py").read_text(encoding="utf-8")
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    (made,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    names = [argument.arg for argument in made.args.args[1:]]
    return set(names), set(names[: len(names) - len(made.args.defaults)])


@pytest.mark.parametrize("row", COMPARISONS, ids=lambda row: row.name)
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "peer"])
def test_an_arm_gets_what_it_takes(row: Comparison, is_ours: bool):
    known, needed = arguments_of(row.ours if is_ours else row.peer)
    given = set(row.settings_of(is_ours))
    assert given <= known
    assert needed <= given


@pytest.mark.parametrize("row", COMPARISONS, ids=lambda row: row.name)
def test_tiny_sizes_are_sizes_of_the_row(row: Comparison):
    assert row.settings_of(True, smoke=True) != row.settings_of(True)
    assert row.settings_of(True, smoke=True).keys() == row.settings_of(True).keys()


def test_names_of_rows_are_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_texts_of_pairs_join_to_their_tokens():
    rows = pairs(3, 4, 8, 64)
    texts = columns(rows)
    joined = [prompt + chosen for prompt, chosen in zip(texts["prompt"], texts["chosen"], strict=True)]
    assert joined == [text(prompt + chosen) for prompt, chosen, _ in rows]


def test_ragged_prompts_are_whole_in_every_other_row():
    lengths = [len(row) for row in prompts(6, 16, 64, ragged=True)]
    assert lengths[::2] == [16, 16, 16]
    assert all(4 <= length < 16 for length in lengths[1::2])


def test_the_reward_is_the_share_of_even_words():
    assert even_share(["w2 w3 w14 w6", ""]) == [0.75, 0.0]
