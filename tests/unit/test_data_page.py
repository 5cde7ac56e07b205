"""The page of a validation: what it says, that nothing of the data becomes markup, and that it stays small."""

import re
import time
from html.parser import HTMLParser

import pytest

from tasks.intake.reporting.charts import MOST_BARS, histogram
from tasks.intake.reporting.drift import Shift
from tasks.intake.reporting.page import page, verdict
from tasks.intake.text.visible import visible
from tests.support.validation import KIND, finding, report

HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'><a href=javascript:x>{{ 7*7 }}"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags in the order of opening, attributes by name, text without markup; fails where tags are not closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = [], set(), [], []
        self.feed(html)
        self.close()
        assert self.open == []

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


def everywhere(text):
    """A report that holds a text wherever one of the data may stand."""
    row = {"row": 0, "line": 1, "field": text, "message": text, "excerpt": text}
    return report(
        finding(text, file=text, message=text, rows=[row], policy=text),
        finding(text, file=f"{text}2", message=text, rows=[row], policy=text),
        files=[{"file": text, "kind": KIND, "format": text, "encoding": text, "rows": 1, "valid": 1, "dropped": 0,
                "repaired": 0}],
        faults=[text],
        tokenizer=text,
        leaks=[{"match": text, "message": text}],
        pairs=report()["pairs"] | {"objectives": [text]},
        scripts={KIND: {text: 1.0}},
    )  # fmt: skip


def test_without_findings_the_data_are_usable():
    shown = Page(page(report()))
    assert "Usable Every row keeps every rule." in shown.text
    assert "No rule was broken." in shown.text
    assert verdict(report()) == {
        "level": "good", "headline": "Usable", "reasons": ["Every row keeps every rule."], "steps": [],
    }  # fmt: skip


def test_one_finding_is_shown_with_its_place_and_what_to_do():
    shown = Page(page(report(finding(), dropped=1))).text
    assert "Usable, worth a look 1 row of 1,000 dropped What to do next" in shown
    assert "Mend or remove the rows that break json, or change its policy in params.yaml" in shown
    assert "json error drop 1 1 Mend it." in shown
    assert "preferences.jsonl :1 row 0, chosen Found 7. text 0" in shown
    assert "data/validated/quarantine.jsonl" in shown


def test_data_that_the_stage_refuses_are_not_usable_and_the_page_says_why():
    found = verdict(report(finding(count=900), dropped=900, faults=["900 of 1000 rows break a rule."]))
    assert (found["level"], found["headline"]) == ("bad", "Not usable as they are")
    assert found["reasons"] == ["900 of 1000 rows break a rule."]
    assert "Mend or remove the rows that break json" in found["steps"][0]


def test_alarms_of_drift_are_worth_a_look():
    shift = Shift(KIND, "rows", "alarm", 0.9, "preferences: 1 usable row, 10 before.")
    found = verdict(report(), [shift])
    assert (found["level"], found["reasons"]) == (
        "look",
        ["1 alarm of drift, first: preferences: 1 usable row, 10 before."],
    )


def test_no_rows_are_nothing_to_be_proud_of():
    empty = {name: {} for name in ("counts", "splits", "lengths", "distinct_prompts", "duplicates", "scripts", "pairs")}
    shown = Page(page(report(files=[], leak_shares=None, **empty))).text
    assert "No rows The files are empty." in shown


def test_rules_come_by_gravity_and_then_by_number_and_files_are_added_up():
    found = page(
        report(
            finding("warned", 50, severity="warning", policy="warn"),
            finding("rare", 2),
            finding("often", 3),
            finding("often", 4, file="part-2.csv"),
            finding("mended", 9, severity="repaired", policy="repair"),
        )
    )
    assert re.findall(r'<a href="#rule-\d">(\w+)</a>', found) == ["often", "rare", "mended", "warned"]
    assert "often error drop 7 2" in Page(found).text
    assert "part-2.csv : 4" in Page(found).text


def test_numbers_of_kinds_lengths_pairs_repetition_and_leaks_are_shown():
    shown = Page(page(report())).text
    assert "preferences 1,000 1,000 0 0 700 980 8 12" in shown
    assert "In tokens of data/models/sft, which reads at most 1,024." in shown
    assert "mean 20.2 · median 18 · p95 60 · max 79" in shown
    assert "longer one in 51.0 % of the pairs" in shown
    assert "Agreement of annotators: 0.75 on average, in 4 rows" in shown
    assert "preferences 1 2 not searched 3 Latin > 99.9 %, Cyrillic < 0.1 %" in shown
    assert (
        "None of the 12 different prompts to measure on stands in a training row. 0 pairs of nearly equal prompts"
        in shown
    )


def test_rows_that_have_no_split_yet_are_shown_without():
    shown = Page(page(report(splits={}, leak_shares=None))).text
    assert "Held out" not in shown
    assert "preferences 1,000 1,000 0 0 700 Files" in shown
    assert "The pipeline looks for them once rows have their splits." in shown


def test_leaks_are_counted_and_shown():
    shares = report()["leak_shares"] | {"exact": {"count": 2, "share": 0.17}, "near": None}
    leaks = [{"match": "exact", "message": "Prompt 'x': train (a:1) and held_out (b:2)."}]
    shown = Page(page(report(leaks=leaks, leak_shares=shares))).text
    assert "2 of 12 different prompts to measure on stand in training rows. Nearly equal prompts were not" in shown
    assert "exact: Prompt 'x': train (a:1) and held_out (b:2)." in shown
    shown = Page(page(report(leak_shares=shares | {"held_out_prompts": 0, "exact": {"count": 0, "share": 0.0}}))).text
    assert "No row names a split to measure on" in shown


def test_drift_is_shown_worst_first_or_why_there_is_none():
    shifts = [Shift(KIND, "rows", level, 0.1, f"{level} sentence") for level in ("fine", "alarm", "look")]
    shown = Page(page(report(), shifts, compared_with="the data of version 3")).text
    assert "differ from the data of version 3." in shown
    assert shown.index("alarm sentence") < shown.index("look sentence") < shown.index("fine sentence")
    assert "There is no champion yet." in Page(page(report(), "There is no champion yet.")).text


@pytest.mark.parametrize("hostile", [HOSTILE, "]]>--><!--", "&lt;script&gt;", "x" * 5000])
def test_nothing_of_the_data_becomes_markup(hostile):
    plain = Page(page(everywhere("plain"), [Shift(KIND, "rows", "fine", 0, "plain")]))
    shown = Page(page(everywhere(hostile), [Shift(KIND, "rows", "fine", 0, hostile)], hostile, hostile))
    assert shown.tags == plain.tags
    assert shown.attributes == plain.attributes
    assert shown.text.count(" ".join(hostile.split())) >= 15


def test_the_page_asks_the_network_for_nothing_and_runs_nothing():
    html = page(report(finding(count=3)))
    assert "default-src 'none'" in html
    assert not re.search(r"https?:|<script|src=|url\(|@import", html)


def test_what_nobody_sees_is_spelled_out():
    shown = str(visible("a\u202eb\u200bc\x00\x1b[31m\ud800\u2028\n<"))
    plain = re.sub(r"<b class=\"mark\" title=\"[^\"<>]*\">([^<]*)</b>", r"[\1]", shown)
    assert plain == "a[U+202E]b[U+200B]c[U+0000][U+001B][31m[U+D800][LS][↵]&lt;"
    assert 'title="U+202E RIGHT-TO-LEFT OVERRIDE"' in shown


@pytest.mark.parametrize("text", ["مرحبا", "👩‍👩‍👧", "naïve", "日本語", "नमस्ते"])
def test_scripts_and_emoji_are_as_they_are(text):
    assert str(visible(text)) == text


def test_half_a_character_leaves_a_page_that_can_be_written():
    page(everywhere("\ud800 \udfff")).encode("utf-8")


def test_a_hundred_thousand_findings_make_a_small_page_quickly():
    long = [
        finding(f"rule_{rule}", 400, file=f"part-{file}.jsonl", severity=("error", "warning", "repaired")[rule % 3])
        for rule in range(25)
        for file in range(10)
    ]
    for found in long:
        for row in found["rows"]:
            row["excerpt"] = "<" * 200
    files = [{**report()["files"][0], "file": f"part-{number}.jsonl"} for number in range(5000)]
    start = time.process_time()
    html = page(report(*long, files=files))
    # 25 rules with 20 rows each, and 100 files: 500 excerpts of 200 characters, four times as long when escaped.
    assert len(html.encode("utf-8")) < 800_000
    assert time.process_time() - start < 2
    assert "100,000 findings" in Page(html).text
    assert "4,900 files more" in Page(html).text


def test_a_histogram_draws_every_count_and_joins_bins_where_there_are_too_many():
    picture = histogram({"edges": [0, 1, 2, 3], "counts": [4, 0, 2]}, "tokens")
    # The base is at 102, the highest bar 94 high; half as many rows, half as high.
    assert [bar.height for bar in picture.bars] == [94.0, 0.0, 47.0]
    assert picture.bars[2].title == "2 to 3 tokens: 2 (33.3%)"
    joined = histogram({"edges": list(range(1001)), "counts": [1] * 1000}, "tokens")
    assert len(joined.bars) <= MOST_BARS
    assert {bar.title.split(": ")[1].split(" ")[0] for bar in joined.bars[:-1]} == {"21"}
    assert joined.bars[-1].title.startswith("987 to 1,000 tokens: 13 ")


def test_a_histogram_of_nothing_is_none():
    assert histogram({}, "tokens") is None
    assert histogram({"edges": [0, 1], "counts": [0]}, "tokens") is None
