"""When retraining has something to learn from, and from which model it starts. The registry is a stand-in."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from rlcore.errors import ConfigError, DataError
from tasks.records.artifacts import content_md5
from tasks.records.lent_parameters import RUNS
from tasks.running import retraining
from tasks.running.progress import LineChecklist
from tests.support.checkout import ROOT

POLICY = SimpleNamespace(name="rlhf-policy", version="7")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with data of one's own; `learnt` holds the md5 that a policy learnt from, `champion` who counts."""
    (tmp_path / "data/raw/own").mkdir(parents=True)
    (tmp_path / "data/raw/own/prompts.jsonl").write_text('{"prompt": "p"}\n')
    text = (ROOT / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("source: data/raw/demo", "source: data/raw/own"))
    state = SimpleNamespace(root=tmp_path, learnt=set(), champion=None, opened=[])

    @contextmanager
    def held_checkout():
        yield tmp_path, LineChecklist(lambda text: None)

    @contextmanager
    def opened_run(root, checklist, resolution, *, name):
        state.opened.append(resolution.parameters)
        yield "run"

    monkeypatch.setattr(retraining, "held_checkout", held_checkout)
    monkeypatch.setattr(retraining, "opened_run", opened_run)
    monkeypatch.setattr(retraining, "Tracker", lambda root: SimpleNamespace(client=None))
    monkeypatch.setattr(retraining, "champion", lambda client: state.champion)
    known = lambda client, model, tags: POLICY if set(tags.items()) <= state.learnt else None  # noqa: E731
    monkeypatch.setattr(retraining, "with_tags", known)
    return state


def retrained(start="base", source=None, sets=()):
    with retraining.retraining_run(start, source, None, sets) as found:
        return found


def test_data_that_a_policy_learnt_from_open_nothing_and_new_ones_do(checkout):
    md5 = content_md5(checkout.root / "data/raw/own")
    checkout.learnt = {("dvc.data/raw/own.md5", md5)}
    assert retrained().reason == (
        f"nothing new: rlhf-policy version 7 learnt from these data (data/raw/own, md5 {md5})"
    )
    assert checkout.opened == []
    (checkout.root / "data/raw/own/prompts.jsonl").write_text('{"prompt": "q"}\n')
    assert retrained().run == "run"
    assert checkout.opened[0].sft.model_name == "scratch"


def test_a_source_becomes_the_setting(checkout):
    (checkout.root / "data/raw/other").mkdir()
    retrained(source="data/raw/other")
    assert checkout.opened[0].validate.source == "data/raw/other"


def test_data_that_are_not_there_say_so_but_the_demo_is_generated(checkout):
    with pytest.raises(DataError, match="data/raw/gone: no such folder. Add data with `rlhf data add FILE`"):
        retrained(source="data/raw/gone")
    assert retrained(source="data/raw/demo").run == "run"


def test_from_the_champion_params_yaml_keeps_its_start_model(checkout):
    before = (checkout.root / "params.yaml").read_text()
    with pytest.raises(ConfigError, match="start: found champion, but there is none"):
        retrained(start="champion")
    checkout.champion = POLICY
    retrained(start="champion", sets=["seed=4"])
    assert checkout.opened[0].sft.model_name == "data/models/champion"
    assert checkout.opened[0].seed == 4
    assert (checkout.root / "params.yaml").read_text() == before.replace("seed: 0", "seed: 4")
    assert not (checkout.root / RUNS).exists()
