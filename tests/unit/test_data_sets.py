"""Rows of one's own: added whole or not at all, kept by DVC, compared with an earlier version."""

import json
from pathlib import Path

import pytest

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
        ('{"prompt": "p"}\n{prompt}\n', "new.jsonl:2: expected a JSON object in UTF-8 on one line. Nothing was added"),
        ('{"question": "p"}\n', "found the columns question, expected prompt, chosen, rejected"),
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
    for name in ("../../evil", "/abs", "a/b", "", ".dvc"):
        with pytest.raises(ConfigError, match="--name: found"):
            folder_of(name)
    with pytest.raises(ConfigError, match="made by the stage demo_data"):
        add(rows_file(tmp_path, PAIRS), "demo", None, root)


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
