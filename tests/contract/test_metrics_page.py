"""docs/metrics.md explains every number that the sources report, and no other. Whole runs: tests/integration."""

import re

from tests.support.checkout import ROOT
from tests.support.metric_names import explained, matches, reported

FILES = [path for package in ("rlcore", "tasks") for path in sorted((ROOT / package).rglob("*.py"))]
REPORTED = set().union(*(reported(path.read_text(encoding="utf-8")) for path in FILES))
MEASURES = ("gold", "number_right", "format_right")
EXPLAINED = explained(MEASURES)
COMPOSED = re.compile(rf"best/<>|(?:{'|'.join(MEASURES)})(?:_greedy)?/.*|.*/gain|.*/gain_over_champion|.*score_mean/<>")
"""Names whose parts come from two places; tests/integration/test_evaluate.py sees them whole."""


def test_what_the_sources_report_is_explained():
    unknown = {
        name
        for name in REPORTED
        # A prefix of names by model is explained with its model.
        if not matches(name, EXPLAINED)
        and not matches(f"{name}/sft", EXPLAINED)
        # A name with a part that is filled in is explained by what it becomes.
        and not ("<>" in name and any(matches(each, {name}) for each in EXPLAINED))
    }
    assert unknown == set()


def test_what_is_explained_is_reported():
    by_itself = {name for name in EXPLAINED if not COMPOSED.fullmatch(name)}
    assert len(by_itself) > 50
    bare = {name: re.sub(r"/<>$", "", name) for name in by_itself}
    assert {name for name in by_itself if not matches(name, REPORTED) and not matches(bare[name], REPORTED)} == set()


def test_a_name_that_the_page_lacks_is_noticed():
    source = 'report = {"kl/new_mean": 1.0, f"time/{part}_s": 2.0, "lose/policy": 0.0}; path = "data/raw/demo"'
    assert reported(source) == {"kl/new_mean", "time/<>_s"}
    assert not matches("kl/new_mean", EXPLAINED)
    assert not matches("lose/policy", EXPLAINED)
    assert matches("response/perplexity/champion", EXPLAINED)
