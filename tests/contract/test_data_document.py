"""docs/data.md: its rows are usable, its command says what the page says, its tables are those of the code."""

import contextlib
import json
import runpy
from pathlib import Path

import pytest

from rlcore.cli.main import main
from rlcore.configs import ValidateConfig
from rlcore.exit_codes import CONFIGURATION
from tasks.intake.checking import check
from tasks.intake.kinds import KINDS
from tasks.intake.reporting.drift import BOUNDS
from tests.support import guides
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "data.md"
SECTIONS = guides.sections(PAGE)


def test_the_rules_and_their_policies_are_those_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- settings of ValidationRules -->" in text
    right = runpy.run_path(str(ROOT / "docs/settings.py"))["with_tables"](text)
    assert text == right, "python docs/settings.py brings the table up to date"


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_that_the_page_shows_of_a_kind_are_usable(kind: str, tmp_path: Path):
    file = tmp_path / f"{kind}.jsonl"
    file.write_text(fenced(SECTIONS["Kinds of rows"].partition(f"### {kind}\n")[2], "json"), encoding="utf-8")
    checked = check([str(file)], None, ValidateConfig())
    assert not checked.has_faults
    assert [(report.kind, report.counts) for report in checked.files] == [(kind, {})]


def test_the_example_is_checked_as_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture):
    example = SECTIONS["Check a file"]
    (tmp_path / "pairs.jsonl").write_text(fenced(example, "json"), encoding="utf-8")
    program, *arguments = guides.commands(PAGE)[0]
    assert program == "rlhf"
    with contextlib.chdir(tmp_path):
        assert main(arguments) == CONFIGURATION
    said = capsys.readouterr().out.splitlines()
    assert fenced(example, "text").splitlines() == [line.rstrip() for line in said]
    assert "Not usable as they are" in (tmp_path / "pairs.html").read_text(encoding="utf-8")


def test_the_bounds_of_drift_are_those_of_the_code():
    rows = {cells[0]: tuple(map(float, cells[1:3])) for cells in guides.rows(SECTIONS["Drift"])}
    assert rows == BOUNDS


def test_the_fields_of_a_finding_are_those_that_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": 1}\n', encoding="utf-8")
    main(["data", "check", str(tmp_path / "pairs.jsonl"), "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = (cells[1] for cells in guides.rows(SECTIONS["Check a file"]) if cells[0] == "`--json`")
    listed = row.partition("{")[2].partition("}")[0].split(", ")
    assert set(listed) <= found.keys()
    assert all(f"`{name}`" in row for name in found["findings"][0])


def test_every_link_leads_somewhere():
    assert guides.dead_links(PAGE) == []


def fenced(section: str, language: str) -> str:
    """The first block of a section in a language."""
    return section.partition(f"```{language}\n")[2].partition("```")[0]
