"""What a pipeline run says of its data: the page in MLflow, a data set entry, and a table in Prefect."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rlcore.errors import DataError
from tasks.intake.reporting.drift import Shift, by_level, compare, read_report, worst
from tasks.intake.reporting.page import page, verdict
from tasks.records.artifacts import (
    DATA_REPORT,
    DATA_REPORT_PAGE,
    VALIDATED,
    VALIDATION,
    VALIDATION_PAGE,
    read_json,
)
from tasks.records.tracking import RunLog
from tasks.records.versioning import StageFacts
from tasks.records.wording import first_line
from tasks.registry import store

SHOWN_RULES = 10
"""Broken rules in the table: the most frequent."""


@dataclass(frozen=True)
class DataReport:
    """What the validation of a run found.

    Attributes:
        report: contents of validation.json.
        drift: how the data differ from the champion's, or why that is not known.
        champion: whose data they are compared with, in words.
    """

    report: Mapping[str, Any]
    drift: Sequence[Shift] | str
    champion: str = ""

    def page(self) -> str:
        """The page, with drift."""
        return page(self.report, self.drift, compared_with=f"the data of the champion, {self.champion}")

    def alarm(self) -> str | None:
        """A line for the terminal where the data are far from the champion's."""
        if isinstance(self.drift, str) or worst(self.drift) != "alarm":
            return None
        alarms = [shift for shift in self.drift if shift.level == "alarm"]
        more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
        return f"data unlike those of the champion, {self.champion}: {alarms[0].sentence}{more}"

    def table(self) -> list[dict[str, str]]:
        """Rows of kinds, the most frequent broken rules, and drift that is worth a look."""
        return [{"part": part, "name": name, "count": count, "note": note} for part, name, count, note in self._lines()]

    def headline(self) -> str:
        """Whether the data can be used, in a line."""
        found = verdict(self.report, self.drift)
        return f"{found['headline']}. {' · '.join(found['reasons'])}"

    def _lines(self) -> Iterator[tuple[str, str, str, str]]:
        for kind, counts in self.report["counts"].items():
            note = f"{counts['kept']:,} usable, {counts['dropped']:,} dropped, {counts['repaired']:,} repaired"
            yield "rows", kind, f"{counts['rows']:,}", note
        counted: Counter[tuple[str, str, str]] = Counter()
        for found in self.report["findings"]:
            counted[found["rule"], found["policy"], found["message"]] += found["count"]
        for (rule, policy, message), count in counted.most_common(SHOWN_RULES):
            yield "rule", rule, f"{count:,}", f"{policy}: {message}"
        if isinstance(self.drift, str):
            yield "drift", "", "", self.drift
            return
        for shift in by_level(self.drift):
            if shift.level != "fine":
                yield "drift", shift.level, "", shift.sentence


def record(log: RunLog, facts: StageFacts, client: MlflowClient, root: Path) -> DataReport:
    """Keep the report of the validation with a pipeline run, compared with the champion's data.

    Args:
        log: the pipeline run.
        facts: of the stage `validate`.
        client: of the registry.
        root: the checkout.
    """
    report = read_json(root / VALIDATION)
    found = DataReport(report, *_drift(report, client))
    log.file(root / VALIDATION, str(DATA_REPORT.parent))
    log.text(found.page(), str(DATA_REPORT_PAGE))
    log.data_set(VALIDATED, facts.outs[str(VALIDATED)], json.dumps(report["counts"]))
    return found


def keep_refused(log: RunLog, root: Path) -> None:
    """Keep what a validation wrote that refused the data; nothing where it did not come so far.

    Args:
        log: the pipeline run.
        root: the checkout.
    """
    for path in (VALIDATION, VALIDATION_PAGE):
        log.file(root / path, str(DATA_REPORT.parent))


def _drift(report: Mapping[str, Any], client: MlflowClient) -> tuple[Sequence[Shift] | str, str]:
    """What differs from the champion's data, and who that is. Where that is not known, the page says why."""
    try:
        champion = store.champion(client)
        if champion is None:
            return "There is no champion yet whose data these could be compared with.", ""
        name = f"{champion.name} version {champion.version}"
        with TemporaryDirectory() as folder:
            earlier = read_report(Path(client.download_artifacts(str(champion.run_id), str(DATA_REPORT), folder)))
        return compare(report, earlier), name
    except (MlflowException, OSError, DataError) as error:
        return f"The report of the champion's data is not there: {first_line(str(error))}", ""
