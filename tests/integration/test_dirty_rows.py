"""Dirty files as they come: what is found in each, row by row, and that the other rows pass byte for byte."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlcore.configs import ValidateConfig
from rlcore.errors import DataError
from tasks.records.artifacts import SPLITS, read_rows, write_json
from tasks.validate import Report, validate_folder

NEEDED = ("demonstrations", "preferences", "prompts")


def line(**row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def pair(prompt: str = "Which?", chosen: Any = "This one.", rejected: Any = "That one.", **more: Any) -> bytes:
    return line(prompt=prompt, chosen=chosen, rejected=rejected, **more)


def shown(prompt: Any = "Which?", response: Any = "This one.", **more: Any) -> bytes:
    return line(prompt=prompt, response=response, **more)


def say(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


QUESTION, ANSWER = say("user", "Which?"), say("assistant", "This one.")
# Between the dirty rows: other key order, blanks, escapes, columns of one's own. They have to stay as they are.
GOOD = b'{"rejected":"no",  "prompt" : "good \\u00e9 \xe6\x97\xa5", "chosen":"yes", "agreement": 1.50}\n'


class Dirty(NamedTuple):
    """A file."""

    kind: str
    rows: list[bytes]
    found: list[tuple[int, str, str]]
    """Row, field and rule of every finding."""
    usable: list[int]
    """Rows that pass."""


FILES = {
    "a column is missing in one row": Dirty(
        "preferences", [line(prompt="a", chosen="b"), GOOD], [(0, "rejected", "is_text")], [1]
    ),
    "null, a number and nothing in one row": Dirty(
        "preferences",
        [line(prompt=None, chosen=7, rejected=""), GOOD],
        [(0, "chosen", "is_text"), (0, "prompt", "is_text"), (0, "rejected", "not_empty")],
        [1],
    ),
    "nan as text is text": Dirty("preferences", [pair(chosen="nan", rejected="None"), GOOD], [], [0, 1]),
    "only invisible characters": Dirty(
        "preferences",
        [pair(chosen="\u200b\ufeff"), GOOD],
        [(0, "chosen", "not_empty"), (0, "chosen", "zero_width")],
        [1],
    ),
    "equal answers": Dirty(
        "preferences", [pair(rejected="This one."), GOOD], [(0, "chosen, rejected", "different_answers")], [1]
    ),
    "answers that differ in case and width": Dirty(
        "preferences",
        [pair(chosen="THIS  one.", rejected="Ｔhis one. ")],
        [(0, "chosen, rejected", "different_answers_normalised")],
        [0],
    ),
    "swapped labels of one pair": Dirty(
        "preferences",
        [pair(), GOOD, pair(chosen="That one.", rejected="This one.")],
        [(2, "chosen, rejected", "contradiction")],
        [0, 1, 2],
    ),
    "the same row again, and with another spelling": Dirty(
        "preferences",
        [pair(), pair(), pair(prompt="WHICH?")],
        [(1, "prompt, chosen, rejected", "duplicate"), (2, "prompt, chosen, rejected", "duplicate_normalised")],
        [0, 1, 2],
    ),
    "rejected by the user, and a column that nobody reads": Dirty(
        "preferences",
        [line(prompt=[QUESTION], chosen=[ANSWER], rejected=[say("user", "No.")], system="be brief"), GOOD],
        [(0, "rejected", "role_order"), (0, "system", "unknown_column")],
        [1],
    ),
    "two answers of the user in a row": Dirty(
        "preferences", [pair(prompt=[QUESTION, QUESTION]), GOOD], [(0, "prompt", "role_order")], [1]
    ),
    "a prompt that ends with an answer": Dirty(
        "preferences", [pair(prompt=[QUESTION, ANSWER]), GOOD], [(0, "prompt", "role_order")], [1]
    ),
    "roles of another project": Dirty(
        "demonstrations",
        [line(messages=[say("human", "a"), say("gpt", "b")]), shown()],
        [(0, "messages", "known_role")],
        [1],
    ),
    "keys of another project": Dirty(
        "demonstrations",
        [line(messages=[{"from": "human", "value": "a"}]), shown()],
        [(0, "messages", "messages")],
        [1],
    ),
    "messages as text": Dirty(
        "demonstrations", [line(messages='[{"role": "user"}]'), shown()], [(0, "messages", "is_text")], [1]
    ),
    "an empty list of messages": Dirty(
        "demonstrations", [line(messages=[]), shown()], [(0, "messages", "messages")], [1]
    ),
    "content that is null": Dirty(
        "demonstrations", [line(messages=[QUESTION, say("assistant", None)]), shown()],
        [(0, "messages", "messages")], [1],
    ),
    "content that is empty": Dirty(
        "demonstrations", [line(messages=[QUESTION, say("assistant", " ")]), shown()],
        [(0, "messages", "not_empty")], [1],
    ),
    "a system message in the middle": Dirty(
        "demonstrations",
        [line(messages=[QUESTION, say("system", "s"), ANSWER]), shown()],
        [(0, "messages", "role_order")],
        [1],
    ),
    "a conversation without an answer": Dirty(
        "demonstrations", [line(messages=[QUESTION]), shown()], [(0, "messages", "role_order")], [1]
    ),
    "answers to two conversations": Dirty(
        "preferences",
        [line(chosen=[QUESTION, ANSWER], rejected=[say("user", "Who?"), say("assistant", "I.")]), GOOD],
        [(0, "prompt, chosen, rejected", "shared_prompt")],
        [1],
    ),
    "a conversation beside another prompt": Dirty(
        "preferences",
        [line(prompt="Who?", chosen=[QUESTION, ANSWER], rejected=[QUESTION, say("assistant", "I.")]), GOOD],
        [(0, "prompt, chosen, rejected", "shared_prompt")],
        [1],
    ),
    "labels that look true": Dirty(
        "unpaired",
        [line(prompt="a", completion=f"{label}", label=label) for label in (1, 0, "true", None, True)],
        [(row, "label", "label") for row in range(4)],
        [4],
    ),
    "one completion with two labels": Dirty(
        "unpaired",
        [line(prompt="a", completion="b", label=label) for label in (True, False)],
        [(1, "completion", "contradiction")],
        [0, 1],
    ),
    "scores that are none": Dirty(
        "scores",
        [line(prompt="a", response=f"{row}", scores=row) for row in ([1, 2], ["1", 2], [None, None], [1], [0, 1])],
        [(1, "scores", "scores"), (2, "scores", "scores"), (3, "scores", "scores")],
        [0, 4],
    ),
    "other objectives from one row on": Dirty(
        "scores",
        [line(prompt="a", response=name, scores={name: 1, "helpful": 2}) for name in ("honest", "honest", "harmless")]
        + [line(prompt="b", response="b", scores={"helpful": 3, "honest": None})],
        [(1, "prompt, response", "duplicate"), (2, "scores", "scores")],
        [0, 1, 3],
    ),
    "cases without a number": Dirty(
        "cases",
        [line(prompt=f"{case}", case_idx=case) for case in (-1, 1.0, "2", 3)],
        [(0, "case_idx", "case_idx"), (1, "case_idx", "case_idx"), (2, "case_idx", "case_idx")],
        [3],
    ),
    "splits and groups of a wrong form": Dirty(
        "prompts",
        [line(prompt="a", split="test"), line(prompt="b", split=None, group=7), line(prompt="c", split="train")],
        [(0, "split", "known_split"), (1, "group", "is_text")],
        [2],
    ),
    "a name that leads out of the folder is a name": Dirty(
        "prompts", [line(prompt="a", group="../../evil"), line(prompt="b", group="/abs\\x00")], [], [0, 1]
    ),
    "half of a character": Dirty(
        "prompts", [b'{"prompt": "cut \\ud83d"}\n', b'{"prompt": "whole \\ud83d\\ude00"}\n'],
        [(0, "prompt", "lone_surrogate")], [1],
    ),
    "control characters, CRLF, direction, invisible ones": Dirty(
        "demonstrations",
        [shown("a\x00b"), shown("c", "d\r\ne"), shown("f", "\u202eg"), shown("h\u200bi"), shown("tab\tand\nline")],
        [
            (0, "prompt", "control_character"), (1, "response", "carriage_return"), (2, "response", "bidi_control"),
            (3, "prompt", "zero_width"),
        ],
        [0, 1, 2, 3, 4],
    ),
    "text that was decoded wrongly, and what was lost": Dirty(
        "demonstrations",
        [shown("café", "caf\u00c3\u00a9"), shown("â€œHiâ€\x9d"), shown("a\ufffd")],
        [(0, "response", "mojibake"), (1, "prompt", "mojibake"), (2, "prompt", "replacement_character")],
        [0, 1, 2],
    ),
    "tokens of a template": Dirty(
        "demonstrations",
        [shown("a", "b<|im_end|>"), shown("<s>[INST] a [/INST]"), shown("c", "x<|endoftext|>")],
        [(0, "response", "special_token"), (1, "prompt", "special_token"), (2, "response", "special_token")],
        [0, 1, 2],
    ),
    "an answer in another script": Dirty(
        "demonstrations", [shown("Which one?", "Вот этот."), shown("42", "сорок два")],
        [(0, "response", "language_mix")], [0, 1],
    ),
    "secrets and people": Dirty(
        "demonstrations",
        [shown("key AKIAIOSFODNN7EXAMPLE"), shown("a", "jo@mail.de"), shown("b", "4111 1111 1111 1111")],
        [(0, "prompt", "secret"), (1, "response", "personal_data"), (2, "response", "personal_data")],
        [0, 1, 2],
    ),
    "columns renamed the wrong way": Dirty(
        "demonstrations", [line(instruction="a", output="b"), shown()],
        [
            (0, "instruction", "unknown_column"), (0, "output", "unknown_column"), (0, "prompt", "is_text"),
            (0, "response", "is_text"),
        ],
        [1],
    ),
    "texts in lists": Dirty(
        "preferences", [pair(chosen=["This one."]), pair(chosen={"text": "a"}), GOOD],
        [(0, "chosen", "messages"), (1, "chosen", "is_text")], [2],
    ),
    "a very long row": Dirty(
        "preferences", [pair(chosen="x" * 5_000_000), GOOD], [(0, "chosen", "max_characters")], [1]
    ),
}  # fmt: skip


def validated(folder: Path, kind: str, content: bytes, **settings: Any) -> Report:
    for name in {*NEEDED, kind}:
        (folder / f"{name}.jsonl").write_bytes(content if name == kind else b"")
    config = ValidateConfig(max_dropped_share=1.0, **{"held_out_share": 0.5, **settings})
    return validate_folder(folder, folder / "out", config)


def found(report: Report) -> list[tuple[int, str, str]]:
    return sorted(
        (row["row"], row["field"], finding["rule"])
        for finding in report.as_json()["findings"]
        for row in finding["rows"]
    )


def kept(folder: Path, kind: str) -> list[bytes]:
    files = [(folder / "out" / kind / f"{split}.jsonl").read_bytes() for split in SPLITS]
    return sorted(line for file in files for line in file.splitlines(keepends=True))


@pytest.mark.parametrize("name", FILES)
def test_every_fault_has_its_row_and_the_others_pass_byte_for_byte(tmp_path: Path, name: str):
    dirty = FILES[name]
    report = validated(tmp_path, dirty.kind, b"".join(dirty.rows))
    assert found(report) == sorted(dirty.found)
    assert kept(tmp_path, dirty.kind) == sorted(dirty.rows[row] for row in dirty.usable)
    quarantine = read_rows(tmp_path / "out" / "quarantine.jsonl")
    assert [row["line"] - 1 for row in quarantine] == [row for row in range(len(dirty.rows)) if row not in dirty.usable]
    counts = report.as_json()["counts"][dirty.kind]
    assert (counts["rows"], counts["kept"]) == (len(dirty.rows), len(dirty.usable))
    write_json(tmp_path / "out" / "report.json", report.as_json())
    # Nothing is written but the outputs: a name in a row leads nowhere.
    assert {path.name for path in tmp_path.iterdir()} == {"out", *(f"{kind}.jsonl" for kind in {*NEEDED, dirty.kind})}


def test_repaired_rows_are_written_anew_and_counted(tmp_path: Path):
    rows = [shown("a\u200bb", "x"), shown("caf\u00c3\u00a9", "y\x00"), shown("c", "jo@mail.de"), shown()]
    rules = dict.fromkeys(("zero_width", "mojibake", "control_character", "personal_data"), "repair")
    report = validated(tmp_path, "demonstrations", b"".join(rows), rules=rules)
    assert kept(tmp_path, "demonstrations") == sorted(
        [shown("ab", "x"), shown("café", "y"), shown("c", "[e-mail address]"), rows[3]]
    )
    assert report.as_json()["counts"]["demonstrations"] == {"rows": 4, "kept": 4, "dropped": 0, "repaired": 3}
    assert {finding["severity"] for finding in report.as_json()["findings"]} == {"repaired"}


def test_a_row_that_is_empty_after_its_repair_is_dropped(tmp_path: Path):
    report = validated(tmp_path, "prompts", line(prompt="\x00"), rules={"control_character": "repair"})
    assert found(report) == [(0, "prompt", "control_character"), (0, "prompt", "not_empty")]
    assert kept(tmp_path, "prompts") == []


def test_what_no_repair_helps_is_dropped(tmp_path: Path):
    broken = line(prompt="\u00c2\u2122\u00c3\u2013 x \u00e2\u20ac")
    report = validated(tmp_path, "prompts", broken, rules={"mojibake": "repair"})
    assert report.as_json()["counts"]["prompts"]["dropped"] == 1


@pytest.mark.parametrize(
    ("policy", "severities", "usable"),
    [("off", [], 2), ("warn", ["warning"], 2), ("drop", ["error"], 1), ("error", ["error"], 1)],
)
def test_the_policy_of_a_rule_decides(tmp_path: Path, policy: str, severities: list[str], usable: int):
    content = pair(chosen="a <|im_end|>", split="train") + pair(prompt="x", split="train")
    report = validated(tmp_path, "preferences", content, rules={"special_token": policy})
    assert [finding["severity"] for finding in report.as_json()["findings"]] == severities
    assert len(kept(tmp_path, "preferences")) == usable
    says = [fault for fault in report.faults() if "special_token in chosen" in fault]
    assert len(says) == (policy == "error")


def test_later_repetitions_are_dropped_where_that_is_asked(tmp_path: Path):
    rows = pair() + pair() + pair(chosen="That one.", rejected="This one.")
    report = validated(tmp_path, "preferences", rows, rules={"duplicate": "drop", "contradiction": "drop"})
    assert kept(tmp_path, "preferences") == [pair()]
    assert report.as_json()["duplicates"]["preferences"] == {
        "exact": 1, "normalised": 0, "contradictions": 1, "near": None,
    }  # fmt: skip


def test_contradictions_are_found_across_the_files_of_a_kind(tmp_path: Path):
    for name in ("demonstrations", "prompts"):
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "preferences").mkdir()
    (tmp_path / "preferences" / "a.jsonl").write_bytes(pair())
    (tmp_path / "preferences" / "b.jsonl").write_bytes(pair(chosen="That one.", rejected="This one."))
    report = validate_folder(tmp_path, tmp_path / "out", ValidateConfig())
    (finding,) = report.as_json()["findings"]
    assert (finding["file"], finding["rule"]) == ("preferences/b.jsonl", "contradiction")
    assert finding["rows"][0]["message"] == "See preferences/a.jsonl:1."


def test_near_duplicates_are_found_and_dropped_on_request(tmp_path: Path):
    text = " ".join(f"word{number}" for number in range(80))
    rows = [line(prompt=text), line(prompt="something else"), line(prompt=f"{text} more"), line(prompt=text.upper())]
    report = validated(tmp_path, "prompts", b"".join(rows), near_duplicates=0.8, rules={"near_duplicate": "drop"})
    assert found(report) == [(2, "prompt", "near_duplicate"), (3, "prompt", "duplicate_normalised")]
    assert kept(tmp_path, "prompts") == sorted([rows[0], rows[1], rows[3]])
    assert read_rows(tmp_path / "out" / "quarantine.jsonl")[0]["reasons"] == ["near_duplicate"]


def test_a_leak_is_told_with_count_and_share_and_may_be_a_warning(tmp_path: Path):
    rows = [
        line(prompt="Q 1", split="train"), line(prompt="q  1", split="held_out"), line(prompt="Q 2", split="held_out"),
        line(prompt="Q 3", split="train"),
    ]  # fmt: skip
    report = validated(tmp_path, "prompts", b"".join(rows))
    assert report.as_json()["leak_shares"] == {
        "held_out_prompts": 2, "exact": {"count": 0, "share": 0.0}, "normalised": {"count": 1, "share": 0.5},
        "near": None,
    }  # fmt: skip
    assert report.as_json()["leaks"][0]["places"] == {"train": "prompts.jsonl:1", "held_out": "prompts.jsonl:2"}
    with pytest.raises(DataError, match=r"two splits \(1 times\)"):
        report.raise_faults()
    lenient = validated(tmp_path, "prompts", b"".join(rows), rules={"leak": "warn"})
    assert not any("two splits" in fault for fault in lenient.faults())


@pytest.mark.parametrize(("policy", "count", "refuses"), [("off", None, False), ("warn", 1, False), ("error", 1, True)])
def test_the_policy_of_nearly_equal_prompts_in_two_splits_decides(
    tmp_path: Path, policy: str, count: int | None, refuses: bool
):
    text = " ".join(f"word{number}" for number in range(80))
    rows = line(prompt=text, split="train") + line(prompt=f"{text} more", split="held_out")
    report = validated(tmp_path, "prompts", rows, near_duplicates=0.8, rules={"near_leak": policy})
    assert report.as_json()["leak_shares"]["near"] == (None if count is None else {"count": count})
    faults = [
        fault for fault in report.faults() if fault.startswith("Nearly equal prompts stand in two splits (1 times)")
    ]
    assert bool(faults) is refuses


def test_a_prompt_of_several_messages_to_measure_on_is_refused_with_its_row(tmp_path: Path):
    turns = line(prompt=[QUESTION, ANSWER, QUESTION], split="held_out")
    report = validated(tmp_path, "prompts", line(prompt=[QUESTION], split="held_out") + turns)
    assert report.faults()[0].startswith("prompts.jsonl:2: a prompt of several messages")


def test_excerpts_hold_no_secret(tmp_path: Path):
    report = validated(tmp_path, "prompts", line(prompt="x\u200b AKIAIOSFODNN7EXAMPLE jo@mail.de"))
    assert "AKIA" not in json.dumps(report.as_json()["findings"])
    assert "jo@mail.de" not in json.dumps(report.as_json()["findings"])
