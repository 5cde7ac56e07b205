"""The documents' practices, the checks and docs/practices.md name the same seventeen."""

import re
import runpy
from pathlib import Path

import pytest

from rlcore.practices import PRACTICES
from tests.support.checkout import ROOT
from tests.support.documents import ENGLISH, PPO_PAGE, text_of

PAGE = (ROOT / "docs/practices.md").read_text(encoding="utf-8")
LISTS = {
    "PPO Training": "module page, PPO",
    "DPO Training": "module page, DPO",
    "Reward Modeling": "module page, reward model",
}


def items_below(text: str, heading: str) -> int:
    """Numbered items of the list below the last such heading."""
    below = text[text.rindex(f"{heading}\n") + len(heading) :]
    numbers = []
    for line in below.strip().splitlines():
        if found := re.match(r"\s*(\d+)\. ", line):
            numbers.append(int(found[1]))
        elif line.strip():
            break
    assert numbers == list(range(1, len(numbers) + 1))
    return len(numbers)


def test_each_practice_of_the_documents_is_checked_under_one_name(shared: Path):
    practices = text_of(shared, ENGLISH).partition("## Best Practices")[2].partition("\n## ")[0]
    documented = [
        f"{source} {number}"
        for heading, source in LISTS.items()
        for number in range(1, items_below(practices, f"### {heading}") + 1)
    ]
    documented += [
        f"PPO guide, {number}" for number in range(1, items_below(text_of(shared, PPO_PAGE), "Mejores Prácticas") + 1)
    ]
    assert len(documented) == 17
    assert sorted(documented) == sorted(practice.source for practice in PRACTICES.values())


def test_the_page_has_the_practices_and_settings_of_the_code():
    right = runpy.run_path(str(ROOT / "docs/settings.py"))["with_tables"](PAGE)
    assert right == PAGE, "python docs/settings.py brings the tables up to date"
    assert all(f"| `{name}` |" in PAGE for name in PRACTICES)


@pytest.mark.parametrize("practice", PRACTICES.values(), ids=list(PRACTICES))
def test_a_threshold_that_a_practice_names_is_a_setting_of_the_page(practice):
    for name in re.findall(r"`(\w+)`", practice.statement.replace("`objective`", "")):
        assert f"\n| `{name}` |" in PAGE
