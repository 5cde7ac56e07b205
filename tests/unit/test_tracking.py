"""What is sent to MLflow, against a client that remembers. What MLflow makes of it: tests/integration/test_flow.py."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from tasks.records.tracking import (
    RunLog,
    Tracker,
    TrackingFailed,
    Unfinished,
    ending,
    flatten,
    forget_unfinished,
    recording,
    remember_unfinished,
    unfinished,
)
from tasks.records.versioning import StageFacts
from tasks.running.following import Batches


class Client:
    """Stores like MLflow: the same point twice is two points, a parameter never changes."""

    def __init__(self):
        self.points, self.params, self.tags, self.inputs, self.batches = [], {}, {}, [], []
        self.down = False

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        if self.down:
            raise MlflowException("down")
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.batches.append(len(metrics))
        self.points += [(metric.key, metric.step, metric.value, metric.timestamp) for metric in metrics]
        for param in params:
            assert self.params.setdefault(param.key, param.value) == param.value
        self.tags.update({tag.key: tag.value for tag in tags})

    def log_inputs(self, run_id, datasets):
        self.inputs += [(each.dataset.name, each.dataset.digest) for each in datasets]

    def set_tag(self, run_id, name, value):
        self.tags[name] = value

    def get_metric_history(self, run_id, name):
        return [SimpleNamespace(step=step) for key, step, *_ in self.points if key == name]

    def open(self):
        data = SimpleNamespace(
            tags=self.tags, params=dict(self.params), metrics={key: value for key, _, value, _ in self.points}
        )
        return RunLog(self, SimpleNamespace(info=SimpleNamespace(run_id="r"), data=data))


def row(step, **numbers):
    return {"step": step, "time": 1000.5 + step, **numbers}


def test_rows_that_a_server_does_not_take_wait_for_it(caplog):
    client = Client()
    batches = Batches(client.open())
    client.down = True
    batches.add([row(1, loss=0.5)])
    batches.send()
    assert caplog.messages == ["MLflow takes no metrics for now: down"]
    client.down = False
    batches.add([row(2, loss=0.4)])
    batches.send()
    assert [(key, step) for key, step, *_ in client.points] == [("loss", 1), ("loss", 2)]


def test_a_point_is_stored_once_also_after_reopening():
    client = Client()
    client.open().rows([row(1, loss=0.5), row(2, loss=0.4)])
    log = client.open()
    log.rows([row(2, loss=0.4), row(3, loss=0.3, kl=0.1)])
    log.rows([row(3, loss=0.3, kl=0.1)])
    # Time goes over in milliseconds.
    assert client.points == [
        ("loss", 1, 0.5, 1001500),
        ("loss", 2, 0.4, 1002500),
        ("loss", 3, 0.3, 1003500),
        ("kl", 3, 0.1, 1003500),
    ]


def test_many_points_go_in_batches_that_the_server_takes():
    client = Client()
    client.open().rows([row(step, loss=1.0) for step in range(2300)])
    assert client.batches == [1000, 1000, 300]


def test_points_that_a_server_missed_are_sent_later():
    client = Client()
    log = client.open()
    client.down = True
    with pytest.raises(MlflowException):
        log.rows([row(1, loss=0.5)])
    client.down = False
    log.rows([row(1, loss=0.5)])
    assert [point[:3] for point in client.points] == [("loss", 1, 0.5)]


def test_a_changed_setting_of_a_resumed_run_becomes_a_tag():
    client = Client()
    client.open().params({"lr": 1e-5, "steps": 3})
    client.open().params({"lr": 5e-6, "steps": 3, "new": None})
    assert client.params == {"lr": "1e-05", "steps": "3", "new": "null"}
    assert client.tags == {"resumed.lr": "5e-06", "pipeline.attempts": "2"}


def test_settings_are_flat_and_cut_to_what_fits():
    flat = flatten({"ppo": {"lora": {"rank": 8}, "betas": (0.9, 0.98), "empty": {}}, "text": "x" * 7000})
    assert flat == {"ppo.lora.rank": "8", "ppo.betas": "[0.9, 0.98]", "ppo.empty": "{}", "text": "x" * 6000}


def test_only_data_are_inputs_with_dvcs_md5_as_digest():
    client = Client()
    deps = {"data/models/sft": "a" * 32 + ".dir", "rlcore/ppo": "b" * 32 + ".dir"}
    client.open().inputs(StageFacts("policy", deps, {}, cache_hit=False))
    # MLflow takes digests of 36 characters at most, which is what a folder's md5 has.
    assert client.inputs == [("data/models/sft", "a" * 32 + ".dir")]


def test_each_attempt_has_its_own_final_number_and_the_last_one_counts():
    client = Client()
    for gold in (0.4, 0.8):
        client.open().numbers({"gold/policy": gold, "note": "no number", "passed": True})
    assert [point[:3] for point in client.points] == [("gold/policy", 0, 0.4), ("gold/policy", 1, 0.8)]


def test_an_unfinished_run_is_remembered_until_it_is_over(tmp_path):
    assert unfinished(tmp_path) is None
    run = Unfinished("key", "flow run", {"seed": 0, "sft": {"learning_rate": 3e-3, "betas": [0.9]}})
    remember_unfinished(tmp_path, run)
    assert unfinished(tmp_path) == run
    forget_unfinished(tmp_path)
    assert unfinished(tmp_path) is None


def test_an_error_without_words_is_reported_all_the_same(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    with pytest.raises(TrackingFailed, match="MLflow at http://tracking: no reason given. See to it"), recording():
        raise MlflowException("")


def test_a_tracking_server_that_is_away_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingFailed, match="MLflow at http://127.0.0.1:9 does not answer"):
        Tracker(tmp_path)


def test_a_damaged_store_is_named_in_one_line(tmp_path, monkeypatch):
    store = tmp_path / "mlflow.db"
    store.write_bytes(b"junk" * 1000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    with pytest.raises(TrackingFailed, match=r"mlflow\.db: [^\n]*not a database\. Put a sound copy[^\n]*$"):
        Tracker(tmp_path)


@pytest.mark.parametrize(("error", "status"), [(ValueError("a fault"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_store_that_is_away_does_not_hide_why_a_run_ended(error, status):
    told = []

    def close(as_what):
        told.append(as_what)
        raise MlflowException("away")

    with pytest.raises(type(error)), ending(close):
        raise error
    assert told == [status]
