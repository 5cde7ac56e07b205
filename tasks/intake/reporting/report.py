"""What was found in the rows of all kinds, as `validation.json` and the command line show it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlcore.configs import ValidateConfig
from tasks.intake.findings import FileReport, Finding, advice
from tasks.intake.inspection import Inspection
from tasks.intake.reporting.profile import Profile

REPEATED = {"exact": "duplicate", "normalised": "duplicate_normalised", "contradictions": "contradiction"}


def heading(config: ValidateConfig) -> dict[str, Any]:
    """How lengths were measured."""
    unit = "characters" if config.tokenizer is None else "tokens"
    return {"unit": unit, "tokenizer": config.tokenizer, "max_tokens": config.max_tokens}


def figures(inspections: Mapping[str, Inspection], profile: Profile) -> dict[str, Any]:
    """Everything that is known of the rows by themselves.

    Args:
        inspections: kind → a look at its rows.
        profile: of the usable rows.
    """
    files = [file for inspection in inspections.values() for file in inspection.files]
    counts = {kind: _counts(inspection.files) for kind, inspection in inspections.items()}
    report: dict[str, Any] = {
        "files": [file.as_json() for file in files],
        "counts": counts,
        "findings": [finding for file in files for finding in file.findings()],
        "lengths": {kind: inspection.measures.lengths() for kind, inspection in inspections.items()},
        "distinct_prompts": {kind: inspection.measures.distinct_prompts for kind, inspection in inspections.items()},
        "duplicates": {kind: _duplicates(inspection) for kind, inspection in inspections.items()},
        "scripts": {kind: inspection.measures.scripts() for kind, inspection in inspections.items()},
        "profile": profile.as_json(),
    }
    if "preferences" in inspections:
        preferences = inspections["preferences"]
        equal = sum(file.count("different_answers") for file in preferences.files)
        rows = counts["preferences"]["rows"]
        report["pairs"] = {**preferences.measures.pairs(), "identical_share": equal / rows if rows else None}
    return report


def faults_of(kind: str, files: Sequence[FileReport], max_dropped_share: float) -> Iterator[str]:
    """Why the rows of a kind cannot be used."""
    for file in files:
        if file.is_cut:
            yield f"{file.file}: a part of the file could not be read. Most often {_described(*_worst([file]))}"
        for finding in file.refused():
            yield f"{file.counts[finding]} rows break a rule with the policy error: {_described(file, finding)}"
    total, dropped = (sum(getattr(file, name) for file in files) for name in ("rows", "dropped"))
    if dropped > max_dropped_share * total:
        name = files[0].file if len(files) == 1 else kind
        yield (
            f"{name}: {dropped} of {total} rows break a rule, more than validate.max_dropped_share={max_dropped_share} "
            f"allows. Most often {_described(*_worst(files))}"
        )


def _worst(files: Sequence[FileReport]) -> tuple[FileReport, Finding]:
    """The rule that took most rows out, and the file where it did."""
    errors = [(file, finding) for file in files for finding in file.counts if finding.severity == "error"]
    return max(errors, key=lambda error: error[0].counts[error[1]])


def _described(file: FileReport, finding: Finding) -> str:
    rows = file.shown[finding]
    field = f" in {rows[0]['field']}" if rows[0]["field"] else ""
    lines = ", ".join(list(dict.fromkeys(str(row["line"]) for row in rows))[:5])
    return f"{finding.rule}{field}, first in {file.file}, line {lines}: {rows[0]['message']} {advice(finding)}"


def _counts(files: Sequence[FileReport]) -> dict[str, int]:
    rows, dropped, repaired = (sum(getattr(file, name) for file in files) for name in ("rows", "dropped", "repaired"))
    return {"rows": rows, "kept": rows - dropped, "dropped": dropped, "repaired": repaired}


def _duplicates(inspection: Inspection) -> dict[str, int | None]:
    counts: dict[str, int | None] = {
        name: sum(file.count(rule) for file in inspection.files) for name, rule in REPEATED.items()
    }
    near = sum(file.count("near_duplicate") for file in inspection.files)
    return {**counts, "near": None if inspection.near is None else near}
