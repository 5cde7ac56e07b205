"""A real Prefect server calls a real webhook, once for each thing that needs a person."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from rlcore.errors import ConfigError
from tasks.service.notifications import CHALLENGER_SET, GATE_REFUSED, announce_outcome, set_up_notifications
from tests.support.checkout import wait_until

pytestmark = pytest.mark.long

SUMMARY = {
    "key": "one",
    "policy": "PPO",
    "version": "rlhf-policy version 3",
    "challenger": False,
    "gate": {"passed": False, "refusals": ["kl_sequence: 9, bound 2, refused"]},
    "mlflow": {"run_id": "abc"},
}


@pytest.fixture
def webhook():
    """Address of a server, and the messages that came in."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", received
    server.shutdown()
    server.server_close()


def test_refusal_challenger_and_failure_reach_the_webhook(prefect_api, webhook):
    url, received = webhook
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        with get_client(sync_client=True) as client:
            names = set_up_notifications(client, "http://127.0.0.1:9/gone")
            assert set_up_notifications(client, url) == names, "again, with another address"
            assert all(len(client.read_automations_by_name(name)) == 1 for name in names)
            paused = client.read_automations_by_name(names[0])[0]
            client.pause_automation(paused.id)
            set_up_notifications(client, url)
            assert not client.read_automations_by_name(names[0])[0].enabled, "what somebody paused stays paused"
            client.resume_automation(paused.id)

        @flow(name="rlhf-pipeline")
        def failing():
            announce_outcome(SUMMARY)
            announce_outcome({**SUMMARY, "challenger": True, "gate": {"passed": True, "refusals": []}})
            raise ValueError("the disk is full")

        @flow(name="somebody-elses")
        def other():
            raise ValueError("not ours")

        for each in (other, failing):
            with pytest.raises(ValueError, match="full|ours"):
                each()
        wait_until(lambda: len(received) >= 3, 90)
    messages = {message["event"]: message for message in received}
    assert set(messages) == {GATE_REFUSED, CHALLENGER_SET, "prefect.flow-run.Failed"}
    assert len(received) == 3
    assert messages[GATE_REFUSED]["text"] == "The gate refused a policy: kl_sequence: 9, bound 2, refused"
    assert messages[GATE_REFUSED]["payload"]["mlflow_run_id"] == "abc"
    assert messages[CHALLENGER_SET]["text"].startswith("rlhf-policy version 3 is the challenger.")
    failed = messages["prefect.flow-run.Failed"]["text"]
    assert failed.startswith("rlhf-pipeline ")
    assert "the disk is full" in failed


def test_without_an_address_nothing_is_set_up_and_a_faulty_one_is_said():
    assert set_up_notifications(None, "") == []
    with pytest.raises(ConfigError, match="RLHF_WEBHOOK_URL: expected an address that begins with https://"):
        set_up_notifications(None, "hooks.example.org/secret")
