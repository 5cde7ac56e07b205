import gzip
import json
from pathlib import Path

import pytest

from rlcore.configs import DemoDataConfig, ValidateConfig
from rlcore.errors import DataError
from tasks.demos.arithmetic import generate
from tasks.records.artifacts import SPLITS, VALIDATED, VALIDATION, read_json, read_rows, write_json
from tasks.validate import Report, validate, validate_folder

LENIENT = ValidateConfig(max_dropped_share=1.0, held_out_share=0.2, validation_share=0.0)
PROMPTS = "".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(10))


def line(**row: object) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def pair(number: int = 0, **changes: object) -> bytes:
    return line(**{"prompt": f"question {number}", "chosen": "yes", "rejected": "no"} | changes)


def check(
    folder: Path,
    preferences: bytes,
    config: ValidateConfig = LENIENT,
    demonstrations: bytes = b"",
    prompts: bytes = PROMPTS.encode(),
) -> Report:
    """Validate three files in `folder`; the output lies in `folder/out`."""
    for name, content in (
        ("demonstrations", demonstrations),
        ("preferences", preferences),
        ("prompts", prompts),
    ):
        (folder / f"{name}.jsonl").write_bytes(content)
    return validate_folder(folder, folder / "out", config)


def kept(folder: Path, kind: str = "preferences") -> bytes:
    return b"".join((folder / "out" / kind / f"{split}.jsonl").read_bytes() for split in SPLITS)


def findings(report: Report) -> list[tuple[str, int, str, str]]:
    return [
        (finding["file"], row["line"], row["field"], finding["rule"])
        for finding in report.as_json()["findings"]
        for row in finding["rows"]
    ]


def test_the_demo_passes_whole_and_unchanged(tmp_path: Path):
    generate(DemoDataConfig(demonstrations=300, preference_pairs=300, held_out_pairs=40), tmp_path)
    report = validate_folder(tmp_path, tmp_path / "out", ValidateConfig())
    report.raise_faults()
    for kind in ("demonstrations", "preferences", "prompts"):
        given = (tmp_path / f"{kind}.jsonl").read_bytes()
        assert sorted(kept(tmp_path, kind).splitlines()) == sorted(given.splitlines())
        for split in SPLITS:
            assert {row["split"] for row in read_rows(tmp_path / "out" / kind / f"{split}.jsonl")} <= {split}
    assert report.as_json()["splits"]["prompts"] == {"train": 1944, "validation": 120, "held_out": 300}
    assert report.leaks == []


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path):
    text = pair(1) + pair(2, chosen="a\u2028b") + pair(3)
    report = check(tmp_path, b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n\n")
    assert findings(report) == []
    rows = [row for split in SPLITS for row in read_rows(tmp_path / "out" / "preferences" / f"{split}.jsonl")]
    assert sorted(row["prompt"] for row in rows) == ["question 1", "question 2", "question 3"]
    assert "a\u2028b" in [row["chosen"] for row in rows]


def test_good_rows_keep_their_bytes(tmp_path: Path):
    odd = b'{"rejected":"no",  "prompt" : "question 1","chosen":"caf\\u00e9 \xe6\x97\xa5", "extra": 1.50}\n'
    check(tmp_path, odd + pair(2).rstrip(b"\n"))
    assert sorted(kept(tmp_path).splitlines(keepends=True)) == sorted([odd, pair(2)])


@pytest.mark.parametrize(
    ("faulty", "rule"),
    [
        (b'{"prompt":"caf\xe9","chosen":"a","rejected":"b"}\n', "encoding"),
        (b'{"prompt": "a"\n', "json"),
        (b'["a"]\n', "json"),
        (b'{"prompt": NaN, "chosen": "a", "rejected": "b"}\n', "number"),
        (b"[" * 100_000 + b"\n", "json"),
    ],
    ids=["latin-1", "cut", "list", "NaN", "deep"],
)
def test_lines_that_cannot_be_read_are_named_and_the_rest_goes_on(tmp_path: Path, faulty: bytes, rule: str):
    report = check(tmp_path, pair(1) + b"\n" + faulty + pair(2))
    assert findings(report) == [("preferences.jsonl", 3, "", rule)]  # the blank line counts
    assert sorted(kept(tmp_path).splitlines(keepends=True)) == [pair(1), pair(2)]
    (row,) = read_rows(tmp_path / "out" / "quarantine.jsonl")
    assert (row["file"], row["line"], row["reasons"]) == ("preferences.jsonl", 3, [rule])


def test_latin_1_fails_the_stage_with_file_line_and_encoding(tmp_path: Path):
    config = ValidateConfig(max_dropped_share=0.02)
    report = check(tmp_path, b'{"prompt":"caf\xe9","chosen":"a","rejected":"b"}\n', config)
    with pytest.raises(DataError, match=r"1 of 1 .* encoding, first in preferences.jsonl, line 1: .*UTF-8"):
        report.raise_faults()


def test_bad_rows_go_to_quarantine_with_all_their_reasons(tmp_path: Path):
    report = check(tmp_path, pair(1) + line(prompt=None, chosen=7, rejected="") + pair(2, rejected="yes"))
    first, second = read_rows(tmp_path / "out" / "quarantine.jsonl")
    assert first["row"] == {"prompt": None, "chosen": 7, "rejected": ""}  # neither "None" nor "7"
    assert sorted(first["reasons"]) == ["chosen: is_text", "prompt: is_text", "rejected: not_empty"]
    assert second["reasons"] == ["chosen, rejected: different_answers"]
    assert report.as_json()["counts"]["preferences"] == {"rows": 3, "kept": 1, "dropped": 2, "repaired": 0}
    assert kept(tmp_path) == pair(1)


def test_repeated_and_contradicting_rows_are_kept_with_a_warning(tmp_path: Path):
    again = pair(1)
    opposite = pair(1, chosen="no", rejected="yes")
    report = check(tmp_path, pair(1) + again + opposite)
    assert findings(report) == [
        ("preferences.jsonl", 2, "prompt, chosen, rejected", "duplicate"),
        ("preferences.jsonl", 3, "chosen, rejected", "contradiction"),
    ]
    assert kept(tmp_path) == pair(1) + again + opposite
    report.raise_faults()


def test_halves_of_characters_outside_texts_and_huge_numbers_end_no_stage(tmp_path: Path):
    half = "\\ud800"
    row = f'{{"prompt": "p", "chosen": "a", "rejected": "b", "{half}": 1, "group": "{half}", "objective": "{half}"}}\n'
    rows = pair(1, agreement=1e308) + pair(2, agreement=1e308) + row.encode()
    found = check(tmp_path, rows).as_json()
    assert [place["field"] for finding in found["findings"] for place in finding["rows"]] == [half]
    assert found["pairs"]["objectives"] == [half]
    assert found["pairs"]["agreement"] == {"count": 2, "mean": 1e308}
    write_json(tmp_path / "found.json", found)
    assert row.encode() in kept(tmp_path)


def test_the_report_is_capped_but_the_count_is_not(tmp_path: Path):
    report = check(tmp_path, b"".join(pair(number, chosen=None) for number in range(250)) + pair(0))
    (finding,) = report.as_json()["findings"]
    assert (finding["rule"], finding["count"], len(finding["rows"])) == ("is_text", 250, 100)
    assert finding["rows"][99]["line"] == 100


def test_rows_are_read_in_pieces(tmp_path: Path):
    # Three pieces of 20 000 rows; the faults lie at the borders.
    rows = [pair(number) for number in range(45_000)]
    for number in (0, 19_999, 20_000, 44_999):
        rows[number] = pair(number, chosen=None)
    report = check(tmp_path, b"".join(rows))
    (finding,) = report.as_json()["findings"]
    assert [row["line"] for row in finding["rows"]] == [1, 20_000, 20_001, 45_000]
    assert [row["row"] for row in finding["rows"]] == [0, 19_999, 20_000, 44_999]
    assert len(kept(tmp_path).splitlines()) == 44_996


def test_files_agree_about_the_split_of_a_prompt(tmp_path: Path):
    prompts = PROMPTS.encode()
    demonstrations = b"".join(line(prompt=f"Question  {number}", response="x") for number in range(10))
    preferences = b"".join(pair(number) for number in range(9, -1, -1))
    report = check(tmp_path, preferences, demonstrations=demonstrations, prompts=prompts)
    for kind in ("demonstrations", "preferences", "prompts"):
        assert report.as_json()["splits"][kind] == {"train": 8, "validation": 0, "held_out": 2}
    assert report.leaks == []
    names = [
        {row["prompt"].lower().replace("  ", " ") for row in read_rows(tmp_path / "out" / kind / "held_out.jsonl")}
        for kind in ("demonstrations", "preferences", "prompts")
    ]
    assert names[0] == names[1] == names[2]


def test_a_prompt_in_two_splits_fails_the_stage(tmp_path: Path):
    report = check(
        tmp_path,
        pair(1, split="train"),
        prompts=line(prompt="QUESTION 1", split="held_out") + line(prompt="other", split="train"),
    )
    with pytest.raises(
        DataError, match=r"two splits \(1 times\).*train \(preferences.jsonl:1\) and held_out \(prompts.j"
    ):
        report.raise_faults()


def test_dropped_rows_leak_nothing(tmp_path: Path):
    report = check(tmp_path, pair(1, split="held_out", chosen=None) + pair(1, split="train"))
    assert report.leaks == []


def test_too_many_dropped_rows_name_the_worst_rule(tmp_path: Path):
    rows = [pair(number) for number in range(96)] + [pair(97, chosen=""), *[pair(98, rejected=3)] * 3]
    report = check(tmp_path, b"".join(rows), ValidateConfig(max_dropped_share=0.03, validation_share=0.0))
    with pytest.raises(
        DataError, match=r"preferences.jsonl: 4 of 100 .*=0.03.*is_text in rejected.*line 98, 99, 100: Found 3"
    ):
        report.raise_faults()
    check(tmp_path, b"".join(rows), ValidateConfig(max_dropped_share=0.04, validation_share=0.0)).raise_faults()


@pytest.mark.parametrize("name", ["demonstrations", "preferences", "prompts"])
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    check(tmp_path, pair(1))
    (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(DataError, match=f"{name}.jsonl: no such file"):
        validate_folder(tmp_path, tmp_path / "out", LENIENT)


def test_a_needed_split_without_rows_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="prompts: no row for the split held_out"):
        check(tmp_path, pair(1, split="train"), prompts=line(prompt="a", split="train")).raise_faults()
    with pytest.raises(DataError, match="preferences: no row for the split train"):
        check(tmp_path, b"").raise_faults()
    check(tmp_path, pair(1, split="train")).raise_faults()  # no demonstration is needed


def test_the_stage_writes_report_and_trace_even_when_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    check(tmp_path / "raw", pair(1, split="train") + pair(2, split="train"))
    validate(ValidateConfig(source="raw"))
    assert read_json(VALIDATION)["counts"]["preferences"]["kept"] == 2
    assert (VALIDATED / "preferences" / "train.jsonl").read_bytes() == pair(1, split="train") + pair(2, split="train")
    trace = read_rows(Path("data/metrics/validate.jsonl"))
    assert trace[0]["data/rows/preferences"] == 2
    check(tmp_path / "raw", pair(1, chosen=None))
    with pytest.raises(DataError, match="See data/metrics/validation.json"):
        validate(ValidateConfig(source="raw"))
    assert read_json(VALIDATION)["counts"]["preferences"]["dropped"] == 1


def test_natural_faults_of_real_data_are_found(tmp_path: Path, shared: Path):
    """6 pairs of the polite rewrites are equal; 46 of the stories carry mojibake, 54 answers of people are empty."""
    with gzip.open(shared / "data" / "rasbt_instruct" / "preferences.jsonl.gz") as file:
        rewrites = file.read()
    with gzip.open(shared / "data" / "tinystories" / "stories.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        stories = [json.loads(text)["text"] for text in file]
    demonstrations = b"".join(line(prompt=f"story {number}", response=text) for number, text in enumerate(stories))
    report = check(tmp_path, rewrites, demonstrations=demonstrations)
    counts = {(found["file"], found["rule"]): found["count"] for found in report.as_json()["findings"]}
    assert counts["preferences.jsonl", "different_answers"] == 6
    assert counts["demonstrations.jsonl", "mojibake"] == 46
    assert report.as_json()["counts"]["preferences"]["kept"] == 844
    assert report.as_json()["counts"]["demonstrations"]["kept"] == len(stories)


def test_answers_that_are_true_or_empty_are_dropped(tmp_path: Path, shared: Path):
    """6 responses of the comparisons by people are the JSON value true, 54 rows have an empty response."""
    with gzip.open(shared / "data" / "pandalm" / "testset-v1.json.gz", "rt", encoding="utf-8") as file:
        comparisons = json.load(file)
    preferences = b"".join(
        line(prompt=f"{row['instruction']}\n{row['input']}", chosen=row["response1"], rejected=row["response2"])
        for row in comparisons
    )
    check(tmp_path, preferences)
    reasons = [set(row["reasons"]) for row in read_rows(tmp_path / "out" / "quarantine.jsonl")]
    no_text = [found for found in reasons if found & {"chosen: is_text", "rejected: is_text"}]
    empty = [found for found in reasons if found & {"chosen: not_empty", "rejected: not_empty"}]
    assert (len(no_text), len(empty)) == (6, 54)


def test_rows_beyond_the_length_limit_are_named(tmp_path: Path):
    rows = b"".join(pair(number, chosen="x" * 5_000_000) for number in range(3)) + pair(4)
    report = check(tmp_path, rows)
    assert [found[1:] for found in findings(report)] == [(number, "chosen", "max_characters") for number in (1, 2, 3)]
    assert kept(tmp_path) == pair(4)
