"""What a pipeline run keeps of the validation of its data, in a real MLflow store."""

import json
from pathlib import Path

import pytest

from tasks.intake.reporting.profile import Profile
from tasks.records import artifacts
from tasks.records.tracking import RunLog
from tasks.records.versioning import StageFacts
from tasks.registry.store import POLICY_MODEL
from tasks.running.data_report import DataReport, keep_refused, record
from tests.support.validation import KIND, finding, report

FACTS = StageFacts("validate", {}, {"data/validated": "0123.dir"}, cache_hit=True)


def data_of(prompts):
    """A report on pairs with these prompts."""
    profile = Profile()
    profile.add(KIND, [{"prompt": prompt, "chosen": "yes, it is", "rejected": "no"} for prompt in prompts])
    return report(finding(count=3), rows=len(prompts), dropped=3, profile=profile.as_json())


def names(start, end):
    return [f"prompt number {number}" for number in range(start, end)]


@pytest.fixture
def keep(registry):
    """Keep a report with a new run, as the pipeline does; the run's id and what was found."""

    def call(content):
        artifacts.write_json(registry.root / artifacts.VALIDATION, content)
        run = registry.client.create_run(registry.client.get_run(registry.run_id).info.experiment_id)
        return run.info.run_id, record(RunLog(registry.client, run), FACTS, registry.client, registry.root)

    return call


def crown(registry, run_id):
    """Make the policy of a run the champion."""
    registry.run_id = run_id
    version = registry.register().version
    registry.click(version)
    return version


def kept(registry, run_id, path):
    return Path(registry.client.download_artifacts(run_id, str(path))).read_text(encoding="utf-8")


def test_the_run_keeps_report_page_and_data_set(registry, keep):
    run_id, _ = keep(data_of(names(0, 10)))
    assert json.loads(kept(registry, run_id, artifacts.DATA_REPORT)) == data_of(names(0, 10))
    assert "There is no champion yet" in kept(registry, run_id, artifacts.DATA_REPORT_PAGE)
    (entry,) = registry.client.get_run(run_id).inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.digest) == ("data/validated", "0123.dir")
    assert json.loads(entry.dataset.profile)[KIND]["kept"] == 7


def test_data_are_compared_with_those_of_the_champion(registry, keep):
    version = crown(registry, keep(data_of(names(0, 400)))[0])
    run_id, found = keep(data_of(names(390, 790)))
    html = kept(registry, run_id, artifacts.DATA_REPORT_PAGE)
    assert f"the data of the champion, {POLICY_MODEL} version {version}" in html
    assert "preferences: 97.5% of the prompts are new." in html
    assert found.alarm() == (
        f"data unlike those of the champion, {POLICY_MODEL} version {version}: "
        "preferences: 97.5% of the prompts are new. (and 1 more)"
    )


def test_the_champions_own_data_are_fine(registry, keep):
    crown(registry, keep(data_of(names(0, 400)))[0])
    _, found = keep(data_of(names(0, 400)))
    assert {shift.level for shift in found.drift} == {"fine"}
    assert found.alarm() is None


def test_a_champion_without_a_report_leaves_the_reason_on_the_page(registry, keep):
    crown(registry, registry.run_id)
    run_id, found = keep(data_of(names(0, 10)))
    assert found.alarm() is None
    assert "The report of the champion&#39;s data is not there" in kept(registry, run_id, artifacts.DATA_REPORT_PAGE)


def test_a_report_of_another_form_leaves_the_reason_on_the_page(registry, keep):
    crown(registry, keep(data_of(names(0, 400)))[0])
    registry.client.log_text(registry.run_id, "{}", str(artifacts.DATA_REPORT))
    _, found = keep(data_of(names(0, 10)))
    assert "found no profile of data" in found.drift


def test_what_refused_data_left_is_kept_as_far_as_it_is_there(registry):
    log = RunLog(registry.client, registry.client.get_run(registry.run_id))
    keep_refused(log, registry.root)
    assert registry.client.list_artifacts(registry.run_id, "data") == []
    artifacts.write_text(registry.root / artifacts.VALIDATION_PAGE, "page")
    keep_refused(log, registry.root)
    assert kept(registry, registry.run_id, artifacts.DATA_REPORT_PAGE) == "page"


def test_the_table_has_kinds_rules_and_drift_worth_a_look(registry, keep):
    crown(registry, keep(data_of(names(0, 400)))[0])
    _, found = keep(data_of(names(390, 790)))
    rows = found.table()
    assert rows[0] == {
        "part": "rows", "name": KIND, "count": "400", "note": "397 usable, 3 dropped, 0 repaired",
    }  # fmt: skip
    assert rows[1] == {"part": "rule", "name": "json", "count": "3", "note": "drop: Mend it."}
    assert [(row["part"], row["name"]) for row in rows[2:]] == [("drift", "alarm"), ("drift", "alarm")]
    assert found.headline().startswith("Usable, worth a look. 3 rows of 400 dropped · 2 alarms of drift")


def test_the_table_says_why_there_is_no_drift():
    assert DataReport(report(), "There is no champion yet.").table()[-1] == {
        "part": "drift", "name": "", "count": "", "note": "There is no champion yet.",
    }  # fmt: skip
