"""`rlhf pipeline compare` with stages that take no time: a table, params.yaml as it was, nothing trained twice."""

import signal

import pytest

from tasks.records.artifacts import STAGES, read_json
from tasks.records.parameters import load_parameters
from tests.support.checkout import ROOT, make_checkout, plan, processes_in, rlhf, start_rlhf, wait_until
from tests.support.runs import runs_of

pytestmark = pytest.mark.long

SHARED = STAGES[:4]
ARMS = ("ppo", "grpo", "dpo", "orpo", "grpo + verifier")


def stages_that(said, state):
    """How often each stage ended in a state, in what the command printed."""
    return {stage: said.count(f"] {stage}: {state} in") for stage in STAGES}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A checkout in which a comparison was stopped in its second arm, then killed in its third, then run to its end."""
    root = make_checkout(tmp_path_factory.mktemp("compare") / "checkout")
    before = (root / "params.yaml").read_bytes()
    for section, number, code in (("grpo", signal.SIGINT, 130), ("dpo", signal.SIGKILL, -signal.SIGKILL)):
        plan(root, section, at=8, do="wait")
        process = start_rlhf(root, "pipeline", "compare", "--set", "sft.max_steps=7")
        wait_until((root / "waiting").exists)
        assert f"algorithm: {section}".encode() in (root / "params.yaml").read_bytes()
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == code, printed
        # After a kill it is the next run that puts it back.
        assert ((root / "params.yaml").read_bytes() == before) == (number != signal.SIGKILL)
    result = rlhf(root, "pipeline", "compare", "--set", "sft.max_steps=7")
    assert result.returncode == 0, result.stdout
    assert (root / "params.yaml").read_bytes() == before
    assert processes_in(root) == []
    (root.parent / "said").write_text(result.stdout)
    return root


@pytest.fixture(scope="module")
def said(compared):
    """What the comparison printed."""
    return (compared.parent / "said").read_text()


def test_the_table_has_a_line_for_each_arm_and_names_the_one_that_saw_the_checker(said):
    rows = [line.split("|") for line in said.splitlines() if line.startswith("| ")]
    gold = {row[1].strip(): row[2].strip() for row in rows[2:]}
    # Fake stages: each algorithm has its own gold, the same in all groups.
    assert gold == {
        "sft": "0.40 [0.40, 0.40]",
        "ppo": "0.80 [0.80, 0.80]",
        "grpo": "0.70 [0.70, 0.70]",
        "dpo": "0.60 [0.60, 0.60]",
        "orpo": "0.50 [0.50, 0.50]",
        "grpo + verifier ¹": "0.70 [0.70, 0.70]",
    }
    assert "5 of 5: grpo + verifier, seed 0" in said
    assert "Traceback" not in said


def test_what_was_done_before_is_not_done_again(compared, said):
    # The killed comparison had trained PPO and GRPO, and DPO up to step 8, with the state of step 6. What the verifier
    # trains is, in this test, the policy of the other GRPO, so its evaluation is known.
    assert stages_that(said, "cached") == dict.fromkeys(SHARED, 5) | {"policy": 2, "evaluate": 3}
    assert stages_that(said, "done") == dict.fromkeys(SHARED, 0) | {"policy": 3, "evaluate": 2}
    assert (compared / ".rlhf" / "logs" / "policy.log").read_text().count("resumed at step 6") == 2


def test_mlflow_holds_a_run_for_each_line_and_the_runs_behind_it(compared, said):
    runs = runs_of(compared)
    # The interrupted comparison was taken up: there is one, and each of its arms is there once.
    (comparison,) = [run for run in runs.pipelines() if run.info.run_name == "compare"]
    key = comparison.data.tags["compare.key"]
    lines = [run for run in runs.runs if run.data.tags.get("mlflow.parentRunId") == comparison.info.run_id]
    assert [line.info.run_name for line in lines] == ["sft", *ARMS]
    assert [line.data.metrics["gold"] for line in lines] == pytest.approx([0.4, 0.8, 0.7, 0.6, 0.5, 0.7])
    behind = [run for run in runs.pipelines() if run is not comparison]
    assert [run.data.tags["compare.arm"] for run in behind] == list(ARMS)
    assert {run.data.tags["compare.key"] for run in behind} == {key}
    assert {run.info.status for run in (*lines, *behind)} == {"FINISHED"}
    assert runs.stage(behind[3], "policy").data.params["beta"] == str(load_parameters(ROOT / "params.yaml").orpo.beta)
    assert key in said


def test_what_an_algorithm_did_not_read_is_not_recorded_as_its_input(compared):
    runs = runs_of(compared)
    inputs = {
        pipeline.data.tags["compare.arm"]: {
            each.dataset.name for each in runs.stage(pipeline, "policy").inputs.dataset_inputs
        }
        for pipeline in runs.pipelines()
        if "compare.arm" in pipeline.data.tags
    }
    assert "data/models/reward" in inputs["ppo"]
    assert "data/models/reward" not in inputs["dpo"] | inputs["grpo + verifier"]


def test_switching_the_algorithm_back_is_a_cache_hit(compared):
    # PPO was the first arm, four others were trained since.
    result = rlhf(compared, "pipeline", "run", "--set", "sft.max_steps=7")
    assert result.returncode == 0, result.stdout
    assert stages_that(result.stdout, "cached") == dict.fromkeys(STAGES, 1)
    assert (compared / "data/models/policy/content.txt").read_text() == "ppo 0\n"
    assert read_json(compared / "data/metrics/evaluate.json")["gold/policy"] == 0.8
    assert "policy: PPO on the scores of the reward model" in result.stdout


@pytest.mark.parametrize("seeds", [("1", "1"), ("-1",)])
def test_seeds_that_make_no_sense_end_before_anything_starts(tmp_path, seeds):
    checkout = make_checkout(tmp_path / "checkout")
    result = rlhf(checkout, "pipeline", "compare", "--seeds", *seeds)
    assert result.returncode == 2
    assert f"seeds: found {', '.join(seeds)}, expected different whole numbers" in result.stdout
    assert not (checkout / ".rlhf" / "logs").exists()
