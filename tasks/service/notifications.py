"""Who is told of what happens: events of the pipeline, and a webhook that Prefect calls for those that need a person.

The server calls the webhook, so it must be one that outlives the run: `rlhf up`, or your own.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events import emit_event
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from rlcore.errors import ConfigError
from tasks.records.reachable import is_address

WEBHOOK_VARIABLE = "RLHF_WEBHOOK_URL"
"""Environment variable with the address that is called."""
GATE_REFUSED, CHALLENGER_SET = "rlhf.gate.refused", "rlhf.challenger.set"
FAILED = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
FLOWS = ("rlhf-pipeline", "rlhf-compare", "retraining", "promotion")
BLOCK = "rlhf-notifications"

BODY = '{"text": {{ (%s)|tojson }}, "event": {{ event.event|tojson }}, "payload": {{ event.payload|tojson }}}'
"""What is sent: `text` is what a chat shows."""
MESSAGES = {
    "rlhf: a run failed": "flow.name ~ ' ' ~ flow_run.name ~ ': ' ~ event.payload.validated_state.message",
    "rlhf: a gate refused": "'The gate refused a policy: ' ~ event.payload.refusals|join('; ')",
    "rlhf: a new challenger": "event.payload.version ~ ' is the challenger. Compare and promote it: rlhf promote'",
}
"""Automation → its message, as an expression of Jinja."""


def set_up_notifications(client: SyncPrefectClient, webhook_url: str | None) -> list[str]:
    """Let the server call a webhook when a run fails, a gate refuses or there is a new challenger.

    Repeated, it changes the address and nothing else. Without an address what is there stays.

    Args:
        client: of the server.
        webhook_url: where to send a JSON object with `text`, `event` and `payload`.

    Returns:
        The names of the automations.

    Raises:
        ConfigError: the address is none.
    """
    if not webhook_url:
        return []
    if not is_address(webhook_url):
        raise ConfigError(f"{WEBHOOK_VARIABLE}: expected an address that begins with https:// or http://. Correct it.")
    block = Webhook(url=webhook_url).save(BLOCK, overwrite=True)
    assert isinstance(block, UUID)
    for name, trigger in _triggers().items():
        automation = AutomationCore(
            name=name,
            description=f"Calls the webhook of the block {BLOCK}.",
            trigger=trigger,
            actions=[CallWebhook(block_document_id=block, payload=BODY % MESSAGES[name])],
        )
        known = client.read_automations_by_name(name)
        if known:
            client.update_automation(known[0].id, automation.model_copy(update={"enabled": known[0].enabled}))
        else:
            client.create_automation(automation)
    return list(MESSAGES)


def announce_outcome(summary: Mapping[str, Any]) -> None:
    """Emit the event of a pipeline run's end: that the gate refused, or that there is a new challenger.

    Args:
        summary: of the run.
    """
    resource = {"prefect.resource.id": f"rlhf.run.{summary['key']}", "prefect.resource.name": summary["version"]}
    told = {"version": summary["version"], "policy": summary["policy"], "mlflow_run_id": summary["mlflow"]["run_id"]}
    if not summary["gate"]["passed"]:
        emit_event(GATE_REFUSED, resource=resource, payload={**told, "refusals": summary["gate"]["refusals"]})
    elif summary["challenger"]:
        emit_event(CHALLENGER_SET, resource=resource, payload=told)


def _triggers() -> dict[str, EventTrigger]:
    """Automation → when it acts, in the order of the messages."""
    related = {"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)}
    triggers = (
        EventTrigger(expect=set(FAILED), match_related=related, posture=Posture.Reactive, threshold=1),
        *(
            EventTrigger(expect={event}, posture=Posture.Reactive, threshold=1)
            for event in (GATE_REFUSED, CHALLENGER_SET)
        ),
    )
    return dict(zip(MESSAGES, triggers, strict=True))
