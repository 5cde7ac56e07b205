"""Every set of real data passes, and the faults that it has by nature are found, no others of their sort."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.configs import ValidateConfig
from tasks.intake.checking import Checked, check
from tasks.records.artifacts import write_rows

Row = Mapping[str, Any]


def rows_of(file: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(file.read_bytes()).decode("utf-8")
    return (
        json.loads(text) if file.name.endswith(".json.gz") else [json.loads(line) for line in text.split("\n") if line]
    )


def counts(checked: Checked) -> dict[str, int]:
    """Findings by rule, without columns that nobody reads: most sets have some."""
    found: dict[str, int] = {}
    for finding in checked.as_json()["findings"]:
        if finding["rule"] != "unknown_column":
            found[finding["rule"]] = found.get(finding["rule"], 0) + finding["count"]
    return found


SETS = {
    "anthropic_evals/short_pairs": (3609, 3609, {"duplicate_normalised": 1}),
    "gsm8k/prefs_a": (1169, 1169, {}),
    "gsm8k/unpaired_a": (2636, 2636, {}),
    "pandalm/preferences": (836, 836, {"personal_data": 4, "duplicate": 76, "duplicate_normalised": 2}),
    "rasbt_instruct/preferences": (850, 844, {"different_answers": 6}),
    "tinystories/rl_prompts": (128, 128, {}),
    "prompts/arena_hard_v0.1": (500, 500, {"zero_width": 2, "replacement_character": 2, "personal_data": 1}),
    "humaneval/HumanEval": (164, 164, {}),
}
"""Rows, usable rows, findings of the files whose columns are those of a kind."""


@pytest.mark.parametrize("name", SETS)
def test_a_set_passes_as_it_is(shared: Path, name: str):
    rows, usable, found = SETS[name]
    checked = check([str(shared / "data" / f"{name}.jsonl.gz")], None, ValidateConfig())
    (file,) = checked.files
    assert (file.rows, file.rows - file.dropped) == (rows, usable)
    assert counts(checked) == found


def pairs_of_people(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        prompt = f"{row['instruction']}\n{row['input']}"
        yield {"prompt": prompt, "chosen": row["response1"], "rejected": row["response2"]}


def shown(prompt: str, response: str) -> Callable[[Iterable[Row]], Iterator[dict[str, Any]]]:
    return lambda rows: ({"prompt": row[prompt], "response": row[response]} for row in rows)


def stories(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    return ({"prompt": f"Story {number}", "response": row["text"]} for number, row in enumerate(rows))


def instances(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for instance in row["instances"]:
            yield {"prompt": f"{row['instruction']}\n{instance['input']}", "response": instance["output"]}


def turns(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    return ({"prompt": turn} for row in rows for turn in row["turns"])


MAPPED: dict[str, tuple[str, Callable[[Iterable[Row]], Iterator[dict[str, Any]]], dict[str, int]]] = {
    "pandalm/testset-v1.json": ("preferences", pairs_of_people, {"is_text": 6, "not_empty": 54}),
    "tinystories/stories.jsonl": ("demonstrations", stories, {"mojibake": 46}),
    "mbpp/mbpp.jsonl": ("demonstrations", shown("text", "code"), {"carriage_return": 972}),
    "gsm8k/train.jsonl": ("demonstrations", shown("question", "answer"), {}),
    "gsm8k/test_a.jsonl": ("demonstrations", shown("question", "answer"), {}),
    "math500/math500.jsonl": ("demonstrations", shown("problem", "solution"), {}),
    "self_instruct/seed_tasks.jsonl": ("demonstrations", instances, {}),
    "prompts/mt_bench_question.jsonl": ("prompts", turns, {}),
}
"""Kind, how the rows become that kind, and the findings that the source has by nature."""
NATURAL = ("is_text", "not_empty", "mojibake", "carriage_return", "replacement_character", "lone_surrogate", "readable")


@pytest.mark.parametrize("name", MAPPED)
def test_a_set_under_our_columns_has_its_natural_faults_and_no_others(shared: Path, tmp_path: Path, name: str):
    kind, mapped, natural = MAPPED[name]
    write_rows(tmp_path / f"{kind}.jsonl", mapped(rows_of(shared / "data" / f"{name}.gz")))
    found = counts(check([str(tmp_path / f"{kind}.jsonl")], kind, ValidateConfig()))
    assert {rule: count for rule, count in found.items() if rule in NATURAL} == natural


def test_a_label_that_is_null_in_609_rows_is_no_text_and_stays_null(shared: Path):
    rows = rows_of(shared / "data" / "anthropic_evals" / "short_pairs.jsonl.gz")
    assert sum(row["label_confidence"] is None for row in rows) == 609
    checked = check([str(shared / "data" / "anthropic_evals" / "short_pairs.jsonl.gz")], None, ValidateConfig())
    (found,) = [each for each in checked.as_json()["findings"] if each["rule"] == "unknown_column"]
    assert [row["field"] for row in found["rows"]] == ["label_confidence", "subset"]
