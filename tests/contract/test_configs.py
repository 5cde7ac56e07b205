"""Every example file of settings fits the settings that there are."""

import re
from pathlib import Path

import pytest

from tasks.records.parameters import resolve

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_goes_over_params_yaml_and_changes_it(example: Path):
    assert resolve(ROOT / "params.yaml", example).changes


def test_the_readme_names_only_files_that_exist():
    named = re.findall(r"(?:configs|docs|infra)/[\w-]+\.\w+", (ROOT / "README.md").read_text())
    assert {str(path.relative_to(ROOT)) for path in EXAMPLES} <= set(named)
    missing = [name for name in named if not (ROOT / name).is_file()]
    assert missing == []
