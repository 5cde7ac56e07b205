import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.cli.main import main

GOOD = '{"prompt": "Which?", "chosen": "This one.", "rejected": "That one."}\n'
EQUAL = '{"prompt": "Which?", "chosen": "This one.", "rejected": "This one."}\n'
OPPOSITE = '{"prompt": "Which?", "chosen": "That one.", "rejected": "This one."}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8", newline="\n")
    return name


def test_usable_rows_end_with_0_and_say_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", write("pairs.jsonl", GOOD)]) == 0
    said = capsys.readouterr().out
    assert "pairs.jsonl: 1 rows of preferences (jsonl, utf-8); every row is usable" in said
    assert "next: rlhf data add pairs.jsonl" in said


def test_a_row_that_is_not_usable_ends_with_2_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", write("pairs.jsonl", GOOD + EQUAL)]) == 2
    said = capsys.readouterr().out
    assert "1 of 2 rows are usable" in said
    assert "2:chosen, rejected" in said
    assert "next: mend the rows above, then rlhf data check pairs.jsonl" in said


def test_json_of_one_file_is_an_object_and_of_several_a_list(folder: Path, capsys: pytest.CaptureFixture[str]):
    bad, good = write("bad.jsonl", '{"prompt"\n' + EQUAL), write("good.jsonl", GOOD)
    assert main(["data", "check", bad, "--json", "--kind", "preferences"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("file", "format", "encoding", "rows", "valid", "dropped")} == {
        "file": "bad.jsonl", "format": "jsonl", "encoding": "utf-8", "rows": 2, "valid": 0, "dropped": 2,
    }  # fmt: skip
    assert [(row["row"], row["line"], row["field"], row["rule"], row["severity"]) for row in found["findings"]] == [
        (0, 1, "", "json", "error"),
        (1, 2, "chosen, rejected", "different_answers", "error"),
    ]
    assert all(row["message"] for row in found["findings"])
    assert main(["data", "check", good, bad, "--json"]) == 2
    assert [file["file"] for file in json.loads(capsys.readouterr().out)] == ["good.jsonl", "bad.jsonl"]


def test_files_of_one_kind_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]):
    names = [write("a.jsonl", GOOD), write("b.jsonl", OPPOSITE)]
    assert main(["data", "check", *names, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["findings"] == []
    (found,) = second["findings"]
    assert (found["rule"], found["severity"]) == ("contradiction", "warning")
    assert "a.jsonl:1" in found["message"]


def test_lengths_are_measured_with_the_model_s_tokenizer(
    folder: Path, shared: Path, capsys: pytest.CaptureFixture[str]
):
    model = str(shared / "models" / "stories260K")
    text = write("shown.jsonl", '{"prompt": "Once", "response": "upon a time there was a little girl."}\n')
    assert main(["data", "check", text, "--model", model, "--max-tokens", "200"]) == 0
    capsys.readouterr()
    assert main(["data", "check", text, "--model", model, "--max-tokens", "10", "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["field"], found["rule"]) == ("response", "response_cut")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.jsonl"], "absent.jsonl"),
        (["rows.jsonl"], "found the columns question, answer, expected prompt, response (demonstrations)"),
        (["rows.jsonl", "--kind", "prompts", "--encoding", "utf-99"], "utf-99"),
        (["rows.jsonl", "--kind", "prompts", "--encoding", "undefined"], "Found the encoding 'undefined'"),
        (["rows.jsonl", "--kind", "prompts", "--encoding", "punycode"], "Found the encoding 'punycode'"),
        (["rows.jsonl", "--kind", "prompts", "--html", ""], "--html: found the folder ''"),
        (["rows.jsonl", "--kind", "prompts", "--html", "rows.jsonl"], "rows.jsonl is one of the files to read"),
        (["rows.jsonl", "--kind", "prompts", "--against", "deep.json"], "deep.json: found no profile of data"),
        (["wide.jsonl"], "c8, c9 and 10 more, expected"),
        (["rows.jsonl", "--kind", "prompts", "--model", "nowhere"], "nowhere/tokenizer.json: no such file"),
        (["rows.jsonl", "--kind", "prompts", "--max-tokens", "5"], "max_tokens=5, tokenizer=null"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
):
    rows = '{"question": "a", "answer": "b"}\n'
    write("rows.jsonl", rows)
    write("deep.json", "[" * 100_000)
    write("wide.jsonl", json.dumps({f"c{number}": 1 for number in range(20)}))
    assert main(["data", "check", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert Path("rows.jsonl").read_text(encoding="utf-8") == rows


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_names_of_columns_and_files_that_no_terminal_can_show_end_no_check(folder: Path, form: list[str]):
    name = os.fsdecode(b"caf\xe9.jsonl")
    write(name, GOOD.replace("}", r', "\ud800": 1, "\u001b[31mred": 2}'))
    done = subprocess.run(
        [sys.executable, "-m", "rlcore.cli.main", "data", "check", name, *form],
        check=False, capture_output=True, text=True, encoding="utf-8", env=os.environ, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ud800" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("row", "is_offered"), [(EQUAL, True), (GOOD.replace('"This one."', "null"), False), ('{"prompt"\n', False)]
)
def test_adding_is_offered_for_rows_alone_that_can_be_added(
    folder: Path, capsys: pytest.CaptureFixture[str], row: str, is_offered: bool
):
    assert main(["data", "check", write("pairs.jsonl", GOOD + row)]) == 2
    assert ("or add them as they are" in capsys.readouterr().out) is is_offered


def test_a_row_that_cannot_be_read_has_line_and_character(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", write("pairs.jsonl", GOOD + '{"prompt": ?}\n')]) == 2
    assert "Line 2, character 12: Found ?" in capsys.readouterr().out


def test_the_page_is_written_and_differences_are_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    pairs = write("pairs.jsonl", GOOD + OPPOSITE)
    assert main(["data", "check", pairs, "--html", "page.html"]) == 0
    assert "contradiction" in Path("page.html").read_text(encoding="utf-8")


def test_ten_thousand_rows_are_checked_without_a_model_library(folder: Path):
    rows = "".join(GOOD.replace("Which?", f"Which of {number}?") for number in range(10_000))
    name = write("pairs.jsonl", rows)
    program = (
        "import sys; from rlcore.cli.main import main; code = main(['data', 'check', sys.argv[1]]);"
        "assert not {'torch', 'transformers', 'prefect', 'mlflow'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, name], check=False, capture_output=True, text=True, env=os.environ, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "10000 rows" in done.stdout
