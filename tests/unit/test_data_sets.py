"""Rows of one's own: added whole or not at all, kept by DVC, compared with an earlier version."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from rlcore.errors import ConfigError, DataError
from tasks.intake import data_sets
from tasks.intake.data_sets import Changed, add, difference, folder_of, name_of, source_in_use
from tasks.records import artifacts

PAIRS = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(3)]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout; `kept` lists what DVC was asked to keep."""
    kept = []
    monkeypatch.setattr(data_sets.versioning, "prepare", lambda root: None)
    monkeypatch.setattr(data_sets.versioning, "keep", lambda path, md5, root: kept.append((str(path), md5)))
    root = tmp_path / "checkout"
    root.mkdir()
    return root, kept


def rows_file(tmp_path, rows, name="new.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_come_after_those_that_are_there_and_repeated_ones_are_left_out(checkout, tmp_path):
    root, kept = checkout
    add(rows_file(tmp_path, PAIRS[:2]), "own", None, root)
    again = {name: PAIRS[1][name] for name in ("rejected", "chosen", "prompt")}
    added = add(rows_file(tmp_path, [again, PAIRS[2]]), "own", None, root)
    assert (added.kind, added.rows, added.repeated, added.total) == ("preferences", 1, 1, 3)
    assert artifacts.read_rows(root / "data/raw/own/preferences.jsonl") == PAIRS
    assert added.empty == ("demonstrations", "prompts")
    assert kept[-1] == ("data/raw/own", artifacts.content_md5(root / "data/raw/own")) == (str(added.folder), added.md5)


def test_rows_can_take_the_place_of_those_of_their_kind(checkout, tmp_path):
    root, _ = checkout
    add(rows_file(tmp_path, PAIRS), "own", None, root)
    add(rows_file(tmp_path, [{"prompt": "p"}]), "own", None, root)
    add(rows_file(tmp_path, PAIRS[2:]), "own", None, root, replace=True)
    assert artifacts.read_rows(root / "data/raw/own/preferences.jsonl") == PAIRS[2:]
    assert artifacts.read_rows(root / "data/raw/own/prompts.jsonl") == [{"prompt": "p"}]


def test_what_a_killed_add_left_behind_is_not_kept(checkout, tmp_path):
    root, _ = checkout
    add(rows_file(tmp_path, PAIRS), "own", None, root)
    (root / "data/raw/own/.preferences.jsonl.partial").write_text('{"prom')
    add(rows_file(tmp_path, [{"prompt": "p"}]), "own", None, root)
    names = sorted(path.name for path in (root / "data/raw/own").iterdir())
    assert names == ["demonstrations.jsonl", "preferences.jsonl", "prompts.jsonl"]


def test_a_file_that_lies_in_the_data_set_is_kept_as_it_is(checkout, tmp_path):
    root, kept = checkout
    add(rows_file(tmp_path, PAIRS), "own", None, root)
    added = add(root / "data/raw/own/preferences.jsonl", "own", None, root)
    assert (added.rows, added.total, len(kept)) == (0, 3, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found no rows. Nothing was added"),
        ('{"prompt": "p"}\n{"prompt": 7}\n', "new.jsonl:2: found no text in prompt, which a row of prompts has"),
        ('{"prompt": "p"}\n{prompt}\n', "new.jsonl:2:2: Found p, expected a name in double quotes. Nothing was added"),
        ('{"question": "p"}\n', "new.jsonl:1: found the columns question, expected prompt, response .demonstrations"),
        (
            '{"prompt": "p", "completion": "c", "label": true}\n{"prompt": "p", "completion": "c"}\n',
            ":2: found no label",
        ),
    ],
)
def test_a_file_with_a_fault_changes_nothing(checkout, tmp_path, content, message):
    root, kept = checkout
    (tmp_path / "new.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        add(tmp_path / "new.jsonl", "own", None, root)
    assert kept == []
    assert not (root / "data").exists()


def test_the_name_leads_nowhere_else_and_not_to_what_a_stage_makes(checkout, tmp_path):
    root, _ = checkout
    for name in ("../../evil", "/abs", "a/b", "", ".dvc", "ok/../../evil", "..", "a\0", "%2e%2e/a", "a\n"):
        with pytest.raises(ConfigError, match="--name: found"):
            folder_of(name)
    with pytest.raises(ConfigError, match="made by the stage demo_data"):
        add(rows_file(tmp_path, PAIRS), "demo", None, root)
    (root / "data/raw").mkdir(parents=True)
    (root / "data/raw/linked").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="data/raw/linked: found a link, expected a folder"):
        add(rows_file(tmp_path, PAIRS), "linked", None, root)
    assert not (tmp_path / "preferences.jsonl").exists()


FORMATS = {
    "a.json": lambda path: path.write_text(json.dumps(PAIRS, indent=1)),
    "a.csv": lambda path: path.write_text("prompt,chosen,rejected\n" + "".join(f"{n}?,yes,no\n" for n in range(3))),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, PAIRS)).encode())),
    "a.parquet": lambda path: parquet.write_table(pyarrow.Table.from_pylist(PAIRS), path),
}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_are_kept_as_json_lines(checkout, tmp_path, name):
    root, _ = checkout
    (tmp_path / "folder").mkdir()
    FORMATS[name](tmp_path / "folder" / name)
    added = add(tmp_path / "folder" / name, "own", None, root)
    assert (added.kind, added.rows) == ("preferences", 3)
    assert artifacts.read_rows(root / "data/raw/own/preferences.jsonl") == PAIRS
    again = add(tmp_path / "folder", "own", "preferences", root)
    assert (again.rows, again.repeated, again.total) == (0, 3, 3)


def test_the_bytes_of_a_good_row_are_kept(checkout, tmp_path):
    root, _ = checkout
    row = b'{"prompt" : "\\u00e9 \xc3\xa9\xe2\x80\xa8 \\ud83d",\t"n": 1.50}'
    (tmp_path / "new.jsonl").write_bytes(b"\xef\xbb\xbf" + row + b"\r\n\n" + row.replace(b"1.50", b"2"))
    assert add(tmp_path / "new.jsonl", "own", None, root).rows == 2
    kept = (root / "data/raw/own/prompts.jsonl").read_bytes()
    assert kept == row + b"\n" + row.replace(b"1.50", b"2") + b"\n"


def test_another_encoding_is_read_where_it_is_named(checkout, tmp_path):
    root, _ = checkout
    (tmp_path / "new.csv").write_bytes("prompt\né\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"new\.csv:1: Found utf-16 .* say --encoding utf-16\. Nothing was added\."):
        add(tmp_path / "new.csv", "own", None, root)
    add(tmp_path / "new.csv", "own", None, root, encoding="utf-16")
    assert artifacts.read_rows(root / "data/raw/own/prompts.jsonl") == [{"prompt": "é"}]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("unpaired", {"prompt": "p", "completion": "c", "label": True}),
        ("scores", {"prompt": "p", "response": "r", "scores": {"help": 1.0}}),
        ("cases", {"prompt": "p", "case_idx": 0, "tests": ["1 + 1"]}),
        ("demonstrations", {"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]}),
    ],
)
def test_rows_of_every_kind_are_added_and_only_needed_kinds_get_an_empty_file(checkout, tmp_path, kind, row):
    root, _ = checkout
    added = add(rows_file(tmp_path, [row]), "own", None, root)
    assert added.kind == kind
    needed = {"demonstrations", "preferences", "prompts"}
    assert {path.stem for path in (root / "data/raw/own").iterdir()} == needed | {kind}
    assert set(added.empty) == needed - {kind}


def test_rows_are_not_added_beside_a_file_of_another_format(checkout, tmp_path):
    root, kept = checkout
    (root / "data/raw/own").mkdir(parents=True)
    (root / "data/raw/own/prompts.csv").write_text("prompt\np\n")
    with pytest.raises(ConfigError, match=r"data/raw/own/prompts\.csv: rows are added to prompts\.jsonl\. Move it"):
        add(rows_file(tmp_path, [{"prompt": "q"}]), "own", None, root)
    assert kept == []
    added = add(rows_file(tmp_path, PAIRS), "own", None, root)
    assert added.empty == ("demonstrations",)


def test_a_faulty_row_that_is_there_stays_and_one_that_would_be_lost_is_named(checkout, tmp_path):
    root, _ = checkout
    target = root / "data/raw/own/prompts.jsonl"
    target.parent.mkdir(parents=True)
    target.write_text('{"prompt": "p"}\n{broken\n')
    assert add(rows_file(tmp_path, [{"prompt": "q"}]), "own", None, root).total == 3
    assert target.read_text() == '{"prompt": "p"}\n{broken\n{"prompt": "q"}\n'
    before = '{"prompt": "p"}\n'.encode("utf-16")
    target.write_bytes(before)
    with pytest.raises(DataError, match=r"prompts\.jsonl:1: Found utf-16"):
        add(rows_file(tmp_path, [{"prompt": "q"}]), "own", None, root)
    assert target.read_bytes() == before


def test_a_data_set_is_called_as_its_folder_unless_that_is_elsewhere_or_the_demo():
    for source, name in (("data/raw/mine", "mine"), ("data/raw/demo", "own"), ("/elsewhere/data", "own")):
        assert name_of(Path(source)) == name


def test_without_a_sound_section_nobody_knows_the_data_set_in_use(tmp_path):
    (tmp_path / "params.yaml").write_text("validate: null\n")
    with pytest.raises(ConfigError, match="Section 'validate': found nothing"):
        source_in_use(tmp_path)


def test_the_difference_tells_added_removed_and_changed_rows_apart(checkout, tmp_path, monkeypatch):
    root, _ = checkout
    changed = {**PAIRS[1], "rejected": "never"}
    new = {"prompt": "new", "chosen": "a", "rejected": "b"}
    add(rows_file(tmp_path, [PAIRS[0], changed, new]), "own", None, root)

    def earlier(md5, path, root):
        (root / path).mkdir(parents=True)
        rows_file(root / path, [PAIRS[2], PAIRS[1], PAIRS[0]], "preferences.jsonl")

    monkeypatch.setattr(data_sets, "md5_at", lambda revision, path, root: "0")
    monkeypatch.setattr(data_sets.versioning, "materialise", earlier)
    found = {file.name: file for file in difference("v1", "own", root)}
    pairs = found["preferences.jsonl"]
    text = [json.dumps(row, sort_keys=True) for row in (new, PAIRS[2], PAIRS[1], changed)]
    assert (pairs.before, pairs.after) == (3, 3)
    assert (pairs.added, pairs.removed) == ([text[0]], [text[1]])
    assert pairs.changed == [Changed(text[2], text[3])]
    assert not (root / ".rlhf/earlier-data").exists()
