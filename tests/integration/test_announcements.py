"""The audit's tasks: an event once for each move, a warning where the champion is not verified."""

import logging

import pytest

from tasks.records.artifacts import PIPELINE, write_text
from tasks.registry import announcements
from tasks.registry.announcements import announce, look
from tasks.registry.promotion import promote
from tests.support.registry import REFUSED, Registry


@pytest.fixture
def told(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """A checkout around the working directory; events that were emitted."""
    write_text(registry.root / PIPELINE, "stages: {}\n")
    monkeypatch.chdir(registry.root)
    monkeypatch.setattr(announcements, "get_run_logger", lambda: logging.getLogger("audit"))
    events: list[dict] = []
    monkeypatch.setattr(announcements, "emit_event", lambda **event: events.append(event))
    return events


def test_a_promotion_is_announced_once(registry: Registry, told: list, caplog: pytest.LogCaptureFixture):
    registry.add("first")
    promote(registry.client, registry.root)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            announce.fn(look.fn())
    (event,) = told
    assert event["event"] == "rlhf.champion.changed"
    assert event["resource"]["prefect.resource.id"] == "rlhf.model.rlhf-policy"
    assert (event["payload"]["version"], event["payload"]["previous"], event["payload"]["verified"]) == (
        "1",
        None,
        True,
    )
    assert [record.levelname for record in caplog.records if record.name == "audit"] == ["INFO"]


def test_a_click_on_a_refused_version_is_warned_of(registry: Registry, told: list, caplog: pytest.LogCaptureFixture):
    registry.add("first", REFUSED)
    registry.click("1")
    announce.fn(look.fn())
    assert told[0]["payload"]["actor"] == "mlflow-ui (unknown)"
    (warning,) = (record for record in caplog.records if record.name == "audit")
    assert warning.levelname == "WARNING"
    assert (
        "from no version to version 1, which is not verified: the gate refused it (kl_sequence" in warning.getMessage()
    )


def test_without_a_move_nothing_is_said(registry: Registry, told: list):
    said = announce.fn(look.fn())
    assert (said["version"], said["announced"]) == (None, False)
    assert told == []


def test_a_move_whose_event_failed_is_announced_by_the_next_audit(
    registry: Registry, told: list, monkeypatch: pytest.MonkeyPatch
):
    registry.add("first")
    promote(registry.client, registry.root)
    with monkeypatch.context() as patch:
        patch.setattr(announcements, "emit_event", lambda **event: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            announce.fn(look.fn())
    announce.fn(look.fn())
    assert len(told) == 1
