"""What a reader of the registry wants to know of a version, in Markdown."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tasks.gate import WIN_RATE, GateReport
from tasks.records.artifacts import DATA_REPORT_PAGE

DESCRIPTION_LIMIT = 5000
"""Longest description that every registry takes, in characters."""
CARD_MEASURES = (
    "gold",
    "gold_greedy",
    "number_right",
    "reward/score_mean",
    "response/length_mean",
    "response/eos_fraction",
)


def model_card(
    origin: str,
    *,
    parents: Mapping[str, str],
    data: Mapping[str, str],
    gate: GateReport,
    metrics: Mapping[str, float],
    samples: Iterable[Mapping[str, Any]],
    curves: str,
) -> str:
    """The card of a policy: origin, numbers, verdict, parents and data, answers.

    Args:
        origin: how the policy was trained, in words.
        parents: role to `<model>/<version>`.
        data: path to DVC md5.
        gate: the verdict.
        metrics: contents of evaluate.json.
        samples: prompts with the answers before and after.
        curves: where MLflow shows the run.
    """
    lines = [
        f"Policy trained with {origin}. [Curves and figures of its run]({curves}), "
        f"[report on its data]({curves}/artifacts/{DATA_REPORT_PAGE}).",
        "",
        *_numbers_table(metrics),
        "",
        f"**Gate: {'passed' if gate.passed else 'refused'}**",
        "",
        "| condition | found | bound | |",
        "|---|---|---|---|",
        *(
            f"| {reason.rule} | {'not measured' if reason.found is None else f'{reason.found:z.3f}'} "
            f"| {reason.bound:g} | {'passed' if reason.passed else 'refused'} |"
            for reason in gate.reasons
        ),
        "",
        *(f"- {advice}" for advice in gate.advice),
        *([""] if gate.advice else []),
        *parents_and_data(parents, data),
        "",
        "**Answers to held-out prompts**",
        "",
        "| prompt | before | after |",
        "|---|---|---|",
        *(f"| {_cell(row['prompt'])} | {_cell(row['before'])} | {_cell(row['after'])} |" for row in samples),
    ]
    return shortened(lines)


def parent_card(what: str, *, parents: Mapping[str, str], data: Mapping[str, str], curves: str) -> str:
    """The card of a model that policies are made of.

    Args:
        what: the model, in words.
        parents: role to `<model>/<version>`.
        data: path to DVC md5.
        curves: where MLflow shows the run.
    """
    return shortened([f"{what}. [Curves of its run]({curves}).", "", *parents_and_data(parents, data)])


def parents_and_data(parents: Mapping[str, str], data: Mapping[str, str]) -> Iterator[str]:
    """Two lists of what the model was made of."""
    if parents:
        yield f"**Parents**: {', '.join(f'{role} {version}' for role, version in parents.items())}"
        yield ""
    yield "**Data and models read** (DVC md5)"
    yield ""
    yield from (f"- `{path}` {md5}" for path, md5 in data.items())


def shortened(lines: list[str]) -> str:
    """As many lines as a description holds."""
    while len("\n".join(lines)) > DESCRIPTION_LIMIT:
        lines.pop()
    return "\n".join(lines)


def _numbers_table(metrics: Mapping[str, float]) -> Iterator[str]:
    models = [
        model
        for model in ("sft", "policy", "champion")
        if any(f"{measure}/{model}" in metrics for measure in CARD_MEASURES)
    ]
    yield f"| held-out prompts | {' | '.join(models)} |"
    yield "|---|" + "---|" * len(models)
    for measure in CARD_MEASURES:
        values = [metrics.get(f"{measure}/{model}") for model in models]
        if any(value is not None for value in values):
            yield f"| {measure} | {' | '.join('' if value is None else f'{value:z.3f}' for value in values)} |"
    for measure in (WIN_RATE, "kl/ref_sequence_mean", "reward_model/accuracy"):
        if f"{measure}_low" in metrics:
            low, high = metrics[f"{measure}_low"], metrics[f"{measure}_high"]
            yield f"\n{measure}: {metrics[measure]:z.3f}, 95 % interval {low:z.3f} to {high:z.3f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
