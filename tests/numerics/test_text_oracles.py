"""The reference cases about texts, and real solutions with real answers. RLCORE_ORACLES names another file of cases."""

import gzip
import json
import os
from pathlib import Path

import pytest

from rlcore.reward_functions import answers_equal
from rlcore.stop_sequences import match_stop

PATH = Path(os.environ.get("RLCORE_ORACLES", Path(__file__).with_name("oracles.json")))
CASES = json.loads(PATH.read_text(encoding="utf-8"))["cases"]


def cases(kind: str) -> list[dict]:
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen, f"no case of kind {kind}"
    return chosen


def rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("case", cases("math_answer"), ids=lambda case: case["id"])
def test_math_answer(case):
    equal = answers_equal(**case["inputs"])
    assert isinstance(equal, bool)
    if case["expected"]["equal"] is not None:
        assert equal == case["expected"]["equal"]


@pytest.mark.parametrize("case", cases("stop_sequence"), ids=lambda case: case["id"])
def test_stop_sequence(case):
    expected = case["expected"]
    assert match_stop(**case["inputs"]) == (expected["text"], expected["stop_after_piece"])


def test_checked_solutions_of_word_problems(shared):
    # 1169 pairs of sampled solutions to GSM8K, labelled by the checked answer
    pairs = rows(shared / "data/gsm8k/prefs_a.jsonl.gz")
    assert len(pairs) == 1169
    assert all(answers_equal(pair["chosen"], pair["reference"]) for pair in pairs)
    assert not any(answers_equal(pair["rejected"], pair["reference"]) for pair in pairs)


def test_competition_answers(shared):
    # every written solution, and the bare answer in a sentence, gives the answer; that of the next problem does not,
    # but for 5 and x=5, which stand side by side
    problems = rows(shared / "data/math500/math500.jsonl.gz")
    assert len(problems) == 500
    for problem, other in zip(problems, problems[1:] + problems[:1], strict=True):
        assert answers_equal(problem["solution"], problem["answer"]), problem["answer"]
        assert answers_equal(f"The answer is {problem['answer']}", problem["answer"]), problem["answer"]
        if problem["answer"] != other["answer"] and other["answer"] != "x=5":
            assert not answers_equal(problem["solution"], other["answer"]), (problem["answer"], other["answer"])
