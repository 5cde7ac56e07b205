"""The report of a validation as one HTML page: no network, no scripts, everything from the data escaped."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from tasks.intake.findings import SHOWN_ROWS
from tasks.intake.reporting.charts import HEIGHT, WIDTH, histogram
from tasks.intake.reporting.drift import Shift, by_level
from tasks.intake.reporting.page_template import STYLE, TEMPLATE
from tasks.intake.text.visible import visible

EXAMPLES = 20
"""Rows that the page shows of each rule."""
FILES = 100
"""Files that it lists."""
FILES_OF_RULE = 20
"""Files that it lists of each rule."""
LEAKS = 20
SCRIPTS = 6
SEVERITIES = ("error", "repaired", "warning")
BIASED = (0.4, 0.6)
"""Share of the pairs whose chosen answer is the longer one, outside of which a reward model learns length."""
NO_DRIFT = (
    "Not compared. The page that a pipeline run keeps in MLflow compares with the champion's data; "
    "`rlhf data check FILE --against VALIDATION.json --html PAGE` with any other."
)


def page(
    report: Mapping[str, Any],
    drift: Sequence[Shift] | str = NO_DRIFT,
    title: str = "Data report",
    compared_with: str = "the earlier data",
) -> str:
    """The page.

    Args:
        report: contents of validation.json.
        drift: what `drift.compare` found, or why there is nothing.
        title: of the page.
        compared_with: the data that drift is against, in words.
    """
    rules = _rules(report["findings"])
    return _template().render(
        title=title,
        style=Markup(STYLE),
        size=(WIDTH, HEIGHT),
        verdict=verdict(report, drift),
        tiles=_tiles(report),
        kinds=list(_kinds(report)),
        has_splits=bool(report["splits"]),
        files={"total": len(report["files"]), "shown": report["files"][:FILES]},
        rules=rules,
        most_files=FILES_OF_RULE,
        unit_sentence=_unit_sentence(report),
        lengths=[(kind, list(_length_charts(columns))) for kind, columns in report["lengths"].items()],
        pairs=_pairs(report.get("pairs")),
        repetition=list(_repetition(report)),
        leaks=_leaks(report),
        drift=drift if isinstance(drift, str) else by_level(drift),
        compared_with=compared_with,
        listed=SHOWN_ROWS,
    )


def verdict(report: Mapping[str, Any], drift: Sequence[Shift] | str = NO_DRIFT) -> dict[str, Any]:
    """Whether the data can be used, why, and what to do: `level` (good, look, bad), `headline`, `reasons`, `steps`."""
    faults = report["faults"]
    total = {
        name: sum(counts[name] for counts in report["counts"].values()) for name in ("rows", "dropped", "repaired")
    }
    warnings = sum(finding["count"] for finding in report["findings"] if finding["severity"] == "warning")
    alarms = [] if isinstance(drift, str) else [shift.sentence for shift in drift if shift.level == "alarm"]
    found = [
        *([f"{_count(total['dropped'], 'row')} of {total['rows']:,} dropped"] if total["dropped"] else []),
        *([f"{_count(total['repaired'], 'row')} repaired"] if total["repaired"] else []),
        *([_count(warnings, "warning")] if warnings else []),
        *([f"{_count(len(alarms), 'alarm')} of drift, first: {alarms[0]}"] if alarms else []),
    ]
    if faults:
        return {"level": "bad", "headline": "Not usable as they are", "reasons": faults, "steps": list(_steps(report))}
    headline = "Usable" if total["rows"] else "No rows"
    looked_at = found or not total["rows"]
    return {
        "level": "look" if looked_at else "good",
        "headline": f"{headline}, worth a look" if found else headline,
        "reasons": found or ["Every row keeps every rule." if total["rows"] else "The files are empty."],
        "steps": list(_steps(report)),
    }


def _steps(report: Mapping[str, Any]) -> Iterator[str]:
    for severity, advice in (
        (
            "error",
            "Mend or remove the rows that break {}, or change its policy in params.yaml, section validate.rules.",
        ),
        ("warning", "Look at the rows under {} below: they are used as they are."),
    ):
        counts = {rule["rule"]: rule["count"] for rule in _rules(report["findings"]) if rule["severity"] == severity}
        if counts:
            yield advice.format(max(counts, key=counts.__getitem__))
    if any(counts["dropped"] for counts in report["counts"].values()):
        yield "The pipeline keeps dropped rows, with the reasons, in data/validated/quarantine.jsonl."
    if any(counts["repaired"] for counts in report["counts"].values()):
        yield "Repaired rows are mended in data/validated alone; your own files are as they were."


def _rules(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The findings by rule and severity: the gravest first, then the most frequent."""
    rules: dict[tuple[str, str], dict[str, Any]] = {}
    for finding in findings:
        named = {name: finding[name] for name in ("rule", "severity", "policy", "message")}
        rule = rules.setdefault(
            (finding["rule"], finding["severity"]), {**named, "count": 0, "files": [], "examples": []}
        )
        rule["count"] += finding["count"]
        rule["files"].append((finding["file"], finding["count"]))
        room = EXAMPLES - len(rule["examples"])
        rule["examples"] += [{"file": finding["file"], **row} for row in finding["rows"][:room]]
    return sorted(rules.values(), key=lambda rule: (SEVERITIES.index(rule["severity"]), -rule["count"], rule["rule"]))


def _tiles(report: Mapping[str, Any]) -> list[tuple[str, int]]:
    counts = report["counts"].values()
    sums = [
        (label, sum(each[name] for each in counts))
        for label, name in (
            ("rows", "rows"),
            ("usable", "kept"),
            ("dropped", "dropped"),
            ("repaired", "repaired"),
        )
    ]
    return [
        *sums,
        ("findings", sum(finding["count"] for finding in report["findings"])),
        ("files", len(report["files"])),
    ]


def _kinds(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, counts in report["counts"].items():
        splits = report["splits"].get(kind, {})
        size = sum(splits.values())
        styles = {"train": "", "validation": "b", "held_out": "c"}
        yield {
            "name": kind,
            **counts,
            "prompts": report["distinct_prompts"].get(kind),
            "splits": splits,
            "shares": [(name, splits.get(name, 0) / size, style) for name, style in styles.items()] if size else [],
        }


def _unit_sentence(report: Mapping[str, Any]) -> str:
    if report.get("unit") == "tokens":
        limit = f", which reads at most {report['max_tokens']:,}" if report.get("max_tokens") else ""
        return f"In tokens of {report['tokenizer']}{limit}."
    return "In characters: no model was named whose tokenizer could count tokens."


def _length_charts(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for column, lengths in columns.items():
        picture = histogram(lengths.get("histogram", {}), lengths.get("unit", ""))
        if picture is not None:
            yield {"column": column, "picture": picture, **lengths}


def _pairs(pairs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not pairs or pairs["chosen_longer_share"] is None:
        return None
    longer, objectives = pairs["chosen_longer_share"], pairs["objectives"]
    return {
        "longer": longer,
        "bias": "Near one half: length says little."
        if BIASED[0] <= longer <= BIASED[1]
        else "Far from one half: a reward model can learn the length instead of what is better.",
        "similarity": histogram(pairs["similarity"], ""),
        "agreement": _agreement(pairs["agreement"]),
        "objectives": f"Objectives: {', '.join(objectives)}." if objectives else "No objective is named.",
    }


def _agreement(found: Mapping[str, Any]) -> str:
    if not found["count"]:
        return "No row says how far annotators agree (column agreement)."
    return f"Agreement of annotators: {found['mean']:.2f} on average, in {found['count']:,} rows that say so."


def _repetition(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, counts in report["duplicates"].items():
        scripts = sorted(report["scripts"].get(kind, {}).items(), key=lambda item: -item[1])
        yield {"kind": kind, **counts, "scripts": scripts[:SCRIPTS]}


def _leaks(report: Mapping[str, Any]) -> dict[str, Any]:
    shares = report["leak_shares"]
    if shares is None:
        return {"sentences": ["The pipeline looks for them once rows have their splits."], "shown": []}
    given, near = shares["held_out_prompts"], shares["near"]
    sentences = [
        f"{shares[match]['count']:,} of {given:,} different prompts to measure on stand in training rows{words}."
        for match, words in (("exact", ""), ("normalised", " but for case and blanks"))
        if shares[match]["count"]
    ]
    if not sentences:
        sentences = [
            f"None of the {given:,} different prompts to measure on stands in a training row."
            if given
            else "No row names a split to measure on; rows with the same prompt are given the same one."
        ]
    if near is None:
        sentences.append("Nearly equal prompts were not looked for (validate.near_duplicates).")
    else:
        sentences.append(f"{_count(near['count'], 'pair')} of nearly equal prompts in training rows and another split.")
    return {"sentences": sentences, "shown": report["leaks"][:LEAKS]}


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def _number(value: float | None) -> str:
    """With separators of thousands; a fraction with one digit; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _percent(share: float) -> str:
    """With one digit; never 0 % or 100 % for what is a little more or less."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %" if share not in (0, 1) else f"{100 * share:.0f} %"


def _as_html(value: object) -> Markup:
    return value if isinstance(value, Markup) else visible(value)


def _attribute(value: object) -> Markup:
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, finalize=_as_html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(attribute=_attribute, number=_number, percent=_percent)
    return environment.from_string(TEMPLATE)
