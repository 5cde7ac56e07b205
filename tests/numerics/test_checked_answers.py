"""Real solutions with real answers: what a person wrote is read as a person would read it."""

import gzip
import json
from pathlib import Path

from rlcore.reward_functions import answers_equal


def rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


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
