"""The runs of a comparison: what they share, and which interrupted comparison goes on."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rlcore.errors import ConfigError
from tasks.records import artifacts, tracking
from tasks.records.lent_parameters import lend
from tasks.records.parameters import resolve, write_parameters
from tasks.records.tracking import COMPARISON
from tasks.records.versioning import StageFacts
from tasks.running import comparison
from tasks.running.comparison import SHARED, Comparison
from tasks.running.comparison_table import Arm
from tasks.running.opening import take_up
from tasks.running.progress import LineChecklist
from tests.support.checkout import ROOT

PPO, DPO, VERIFIED = Arm("ppo", "ppo"), Arm("dpo", "dpo"), Arm("grpo + verifier", "grpo", "m:f")


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """A comparison of three arms whose pipeline runs are objects that remember what they were opened with."""
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    opened = []

    @contextmanager
    def opened_run(root, checklist, resolution, **identity):
        run = SimpleNamespace(parameters=resolution.parameters, log=MagicMock(), facts={}, known={}, **identity)
        opened.append(run)
        yield run

    monkeypatch.setattr(comparison, "opened_run", opened_run)
    whole = Comparison(
        tmp_path, LineChecklist(lambda text: None), [PPO, DPO, VERIFIED], [0, 1], params_file=None,
        sets=["sft.max_steps=7"], resolution=resolve(ROOT / "params.yaml"), key="c",
    )  # fmt: skip
    whole.opened = opened
    return whole


def bring_up_to_date(run, *stages):
    run.facts = {stage: StageFacts(stage, {}, {}, cache_hit=False, seconds={"wall": 9.0}) for stage in stages}


def test_an_arm_runs_with_its_settings_under_a_key_of_its_own(compared):
    for seed, arm in ((0, PPO), (1, VERIFIED)):
        with compared.run(arm, seed):
            pass
    first, second = compared.opened
    assert (first.parameters.algorithm, first.parameters.seed, first.key) == ("ppo", 0, "c/ppo/0")
    assert (second.parameters.algorithm, second.parameters.reward_function) == ("grpo", "m:f")
    assert second.key == "c/grpo + verifier/1"
    assert {run.parameters.sft.max_steps for run in compared.opened} == {7}


def test_stages_before_the_policy_are_known_to_the_other_arms_of_a_seed(compared):
    with compared.run(PPO, 0) as run:
        assert run.known == {}
        bring_up_to_date(run, *artifacts.STAGES)
    with compared.run(DPO, 0) as run:
        assert tuple(run.known) == SHARED == ("demo_data", "validate", "sft", "reward")
        # They took their time once.
        assert {(facts.cache_hit, sum(facts.seconds.values())) for facts in run.known.values()} == {(True, 0)}
    with compared.run(PPO, 1) as run:
        assert run.known == {}


def test_stages_of_an_arm_that_failed_are_not_taken_as_known(compared):
    def fail(run):
        bring_up_to_date(run, "demo_data", "validate")
        raise ConfigError("sft: faulty")

    with pytest.raises(ConfigError, match="faulty"), compared.run(PPO, 0) as run:
        fail(run)
    with compared.run(DPO, 0) as run:
        assert run.known == {}


def test_data_of_ones_own_leave_one_stage_less_to_know(compared):
    with compared.run(PPO, 0) as run:
        bring_up_to_date(run, *artifacts.STAGES[1:])
    with compared.run(DPO, 0) as run:
        assert tuple(run.known) == SHARED[1:]


def test_an_arm_does_not_run_with_what_somebody_wrote_meanwhile(compared):
    path = compared.root / "params.yaml"
    lend(compared.root, [resolve(path, None, PPO.settings(0)).values])
    with compared.run(PPO, 0):
        pass
    write_parameters(path, resolve(path, None, ["sft.max_steps=5"]).changes)
    with pytest.raises(ConfigError, match="changed while a run had borrowed it"), compared.run(DPO, 0):
        pass
    assert len(compared.opened) == 1


def test_an_interrupted_comparison_goes_on_under_its_key_if_the_same_is_asked_for(tmp_path):
    asked = {"runs": [{"algorithm": "ppo", "ppo": {"learning_rate": 5e-4, "lora": None}}]}
    first = take_up(tmp_path, asked, COMPARISON)
    assert take_up(tmp_path, asked, COMPARISON) == first
    other = take_up(tmp_path, {"runs": [{"algorithm": "dpo"}]}, COMPARISON)
    assert other != first
    # One that came to its end is over.
    tracking.forget_unfinished(tmp_path, COMPARISON)
    assert take_up(tmp_path, {"runs": [{"algorithm": "dpo"}]}, COMPARISON) not in (first, other)


def test_a_comparison_takes_up_no_interrupted_pipeline_run(tmp_path):
    asked = {"runs": []}
    tracking.remember_unfinished(tmp_path, tracking.Unfinished("pipeline", "f", asked))
    assert take_up(tmp_path, asked, COMPARISON) != "pipeline"
    assert tracking.unfinished(tmp_path).key == "pipeline"
