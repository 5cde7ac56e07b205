"""The summary of a run for people: what happened, was it good, where to look, what next; a comparison as a table."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from tasks.records import artifacts
from tasks.running.progress import duration

MEASURES = (
    "gold/sft",
    "gold/policy",
    "number_right/sft",
    "number_right/policy",
    "win/rate_over_champion",
    "reward/score_mean",
    "kl/ref_sequence_mean",
    "reward_model/accuracy",
    "reward_model/accuracy_longer_wins",
    "response/length_mean/policy",
    "response/eos_fraction/policy",
    "response/distinct_2/sft",
    "response/distinct_2/policy",
    "response/perplexity/sft",
    "response/perplexity/policy",
)
"""Measures of `evaluate.json` that the summary shows; as many as there are."""

COMPARISONS = ("win/gain", "win/gain_over_champion", "win/policy")
"""What it shows besides where nothing measured gold."""

SHOWN_CHANGES = 3
"""Changed settings that the summary spells out."""


def sections(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Question and answer, four times; five where a practice was not followed, or the data are not what they were.

    Args:
        summary: what the flow returned, with `uncommitted` where git was asked.
    """
    return [
        ("What happened", _happened(summary)),
        ("Was it good", _good(summary)),
        ("Where to look", _where(summary)),
        *([("What to watch", "\n".join(warnings))] if (warnings := _warnings(summary)) else []),
        ("What next", _next(summary)),
    ]


def terminal_table(summary: Mapping[str, Any]) -> Table:
    """The summary for a terminal."""
    table = Table(show_header=False, title="rlhf-pipeline", title_justify="left", show_lines=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for question, answer in sections(summary):
        table.add_row(question, Text(answer))
    return table


def markdown(summary: Mapping[str, Any]) -> str:
    """The summary as a Prefect artifact."""
    rows = "\n".join(
        f"| {question} | {answer.replace('|', '/').replace(chr(10), '<br>')} |"
        for question, answer in sections(summary)
    )
    return f"| | |\n|---|---|\n{rows}\n"


def comparison_text(summary: Mapping[str, Any]) -> str:
    """What a comparison came to, as Markdown.

    Args:
        summary: what the flow of a comparison returned, with the seconds that it took.
    """
    mlflow = summary["mlflow"]
    return "\n".join(
        [
            "",
            summary["table"],
            f"{_time(summary)}. Nothing was registered; params.yaml is as it was, and data/ holds the last arm.",
            f"Where to look: `make ui`, then {mlflow['run_page']} (the table) or {mlflow['page']} (side by side)",
            f"The runs behind it: {mlflow['filter']}",
            "What next: `rlhf pipeline run` takes what params.yaml asks for from the cache, and registers it",
        ]
    )


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    alarm = summary.get("data_alarm")
    return [*summary["practices"], *([alarm] if alarm else [])]


def _happened(summary: Mapping[str, Any]) -> str:
    stages = summary["stages"]
    lines = [f"policy: {summary['policy']}"]
    ran = [
        f"{name} {duration(facts['seconds'].get('wall', 0.0))}"
        for name, facts in stages.items()
        if not facts["cache_hit"]
    ]
    cached = [name for name, facts in stages.items() if facts["cache_hit"]]
    if ran:
        lines.append(f"ran: {', '.join(ran)}")
    if cached:
        lines.append(f"nothing new, taken from the cache: {', '.join(cached)}")
    lines.append(_time(summary))
    changes = summary["changed_parameters"]
    lines += [f"params.yaml changed: {change}" for change in changes[:SHOWN_CHANGES]]
    if len(changes) > SHOWN_CHANGES:
        lines.append(f"params.yaml changed: {len(changes) - SHOWN_CHANGES} settings more, see `git diff params.yaml`")
    if changes:
        lines.append("these settings stay in params.yaml; `git checkout params.yaml` takes them back")
    if dropped := round(stages.get("validate", {}).get("metrics", {}).get("data/dropped_count", 0)):
        rows = "1 row" if dropped == 1 else f"{dropped} rows"
        lines.append(f"{rows} dropped, see {artifacts.VALIDATED / 'quarantine.jsonl'}")
    return "\n".join(lines)


def _time(summary: Mapping[str, Any]) -> str:
    imports = f" (imports {duration(summary['import_seconds'])})" if "import_seconds" in summary else ""
    return (
        f"{duration(summary['seconds'])} in all: {duration(summary['stage_seconds'])} in stages{imports}, "
        f"{duration(summary['orchestration_seconds'])} orchestration"
    )


def _good(summary: Mapping[str, Any]) -> str:
    evaluation = summary["evaluation"]
    measures = MEASURES if "gold/policy" in evaluation else (*COMPARISONS, *MEASURES)
    lines = [f"{name} {evaluation[name]:z.3f}{_interval(evaluation, name)}" for name in measures if name in evaluation]
    gate = summary["gate"]
    if gate["passed"]:
        return "\n".join([*lines, f"the gate passed it: {summary['version']} is the challenger"])
    return "\n".join([*lines, "the gate refused it, so it is no challenger:", *gate["refusals"]])


def _where(summary: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            f"MLflow run {summary['mlflow']['run_id']} (`make ui`, then {summary['mlflow']['page']})",
            f"figures: {artifacts.FIGURES}/    numbers: {artifacts.EVALUATE}",
            f"answers before and after: {artifacts.SAMPLES['evaluate']}    data: {artifacts.VALIDATION_PAGE}",
            f"registry: {summary['version']}    logs of the stages: {artifacts.LOGS}/",
        ]
    )


def _next(summary: Mapping[str, Any]) -> str:
    lines = []
    if not summary["gate"]["passed"]:
        lines.append("nothing was promoted: change a setting or the data, and run again")
        lines += summary["gate"]["advice"]
    if changed := summary.get("uncommitted"):
        lines.append(f"git add {' '.join(changed)} && git commit    keeps which data and models belong to this code")
    lines.append("make ui    shows runs, traces and the registry")
    if summary["gate"]["passed"]:
        lines.append("rlhf promote    makes it the champion, as does the alias `champion` on its version in MLflow")
    return "\n".join(lines)


def _interval(evaluation: Mapping[str, float], name: str) -> str:
    low, high = evaluation.get(f"{name}_low"), evaluation.get(f"{name}_high")
    return f"  [{low:z.3f}, {high:z.3f}]" if low is not None and high is not None else ""
