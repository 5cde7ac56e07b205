"""The checklist: time left, current numbers, one line for each event."""

import io

import pytest
from rich.console import Console

from tasks.running import progress
from tasks.running.progress import LineChecklist, LiveChecklist, Step, duration, watched_by, watcher
from tasks.running.report import comparison_text, markdown, sections


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still at 1000 s until told."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def row(step, time, **numbers):
    return {"step": step, "time": time, **numbers}


def test_time_left_is_the_pace_of_this_attempt(clock):
    step = Step("sft", state="running", started=1000.0)
    step.report({"step": 0, "time": 900.0, "progress/total_steps": 100})
    # An earlier attempt took a second for each step up to 40.
    for number in (39, 40):
        step.report(row(number, 900.0 + number, loss=1.0))
    assert step.share() == 0.4
    assert step.seconds_left() is None
    step.report(row(50, 1010.0, loss=1.0))
    step.report(row(60, 1040.0, loss=1.0))
    clock[0] = 1050.0
    # 10 steps in 30 s, 40 steps to go: 120 s from the last report, which is 10 s ago.
    assert step.seconds_left() == 110.0


def test_duration():
    assert [duration(seconds) for seconds in (6.6, 185, 7800)] == ["7 s", "3 min 05 s", "2 h 10 min"]


def test_lines_come_at_events_and_now_and_then(clock):
    lines = []
    checklist = LineChecklist(lines.append)
    checklist.start("policy")
    checklist.report("policy", [{"step": 0, "time": 1000.0, "progress/total_steps": 36}])
    for number in range(1, 31):
        clock[0] += 1
        checklist.report("policy", [row(number, clock[0], **{"reward/score_mean": number / 10, "x/y": 1.0})])
    checklist.finish("policy", "done")
    assert lines == [
        "[5/8] policy: started",
        "[5/8] policy: 15/36  reward/score_mean 1.5  21 s left",
        "[5/8] policy: 30/36  reward/score_mean 3  6 s left",
        "[5/8] policy: done in 30 s, reward/score_mean 3",
    ]


def test_the_table_shows_every_state(clock):
    console = Console(file=io.StringIO(), width=120)
    checklist = LiveChecklist(console)
    checklist.start("demo_data")
    checklist.finish("demo_data", "cached")
    checklist.start("validate")
    checklist.finish("validate", "failed", "rows 3 and 4 are empty " + "and so on " * 20)
    checklist.start("sft")
    checklist.report(
        "sft", [{"step": 0, "time": 1000.0, "progress/total_steps": 4}, row(1, 1000.0, **{"sft/loss": 2.5})]
    )
    checklist.note("waiting for the accelerator")
    console.print(checklist.table())
    lines = console.file.getvalue().splitlines()
    assert "✓" in lines[0]
    assert "cached" in lines[0]
    assert "rows 3 and 4 are empty" in lines[1]
    assert "sft/loss 2.5" in lines[2]
    assert "·" in lines[3]
    assert [line.split()[1] for line in lines[:8]] == list(progress.STEPS)
    assert "waiting for the accelerator" in lines[8]


def test_another_run_begins_with_a_title_and_waiting_steps(clock):
    lines = []
    checklist = LineChecklist(lines.append, progress.STEPS[:2])
    checklist.start("validate")
    checklist.begin("2 of 5: dpo, seed 0")
    assert {step.state for step in checklist.steps.values()} == {"waiting"}
    assert list(checklist.steps) == ["demo_data", "validate"]
    assert lines[-1] == "2 of 5: dpo, seed 0"
    console = Console(file=io.StringIO(), width=120)
    live = LiveChecklist(console)
    live.begin("2 of 5: dpo, seed 0")
    console.print(live.table())
    assert console.file.getvalue().startswith("2 of 5: dpo, seed 0\n")


def test_a_policy_from_pairs_shows_its_own_numbers(clock):
    step = Step("policy", state="running", started=1000.0)
    step.report(row(10, 1001.0, **{"dpo/loss": 0.5, "dpo/accuracy": 0.9, "validation/loss": 0.4}))
    assert step.numbers_text() == "dpo/loss 0.5  dpo/accuracy 0.9"


def test_what_is_rounding_is_shown_as_0(clock):
    step = Step("policy", state="running", started=1000.0)
    step.report(row(1, 1001.0, **{"kl/ref_sequence_mean": -3.75e-07}))
    assert step.numbers_text() == "kl/ref_sequence_mean 0"


def test_whoever_watches_is_found_and_otherwise_lines_are_written():
    lines = []
    watcher(lines.append).note("alone")
    theirs = LineChecklist(lambda text: lines.append(f"watched: {text}"))
    with watched_by(theirs):
        watcher(lines.append).note("together")
    watcher(lines.append).note("alone again")
    assert lines == ["alone", "watched: together", "alone again"]


SUMMARY = {
    "policy": "PPO on the scores of the reward model",
    "seconds": 100.0,
    "stage_seconds": 80.0,
    "import_seconds": 9.0,
    "orchestration_seconds": 20.0,
    "stages": {
        "sft": {"cache_hit": True, "seconds": {}},
        "policy": {"cache_hit": False, "seconds": {"wall": 80.0}},
    },
    "evaluation": {"gold/policy": 0.8, "gold/policy_low": 0.75, "gold/policy_high": 0.85},
    "gate": {
        "passed": False,
        "refusals": ["kl_sequence: 3.2, bound 2, refused"],
        "advice": ["kl_sequence: data/metrics/figures/kl.png"],
    },
    "version": "rlhf-policy version 3",
    "changed_parameters": ["seed: 0 -> 1"],
    "practices": [],
    "mlflow": {"run_id": "abc", "page": "#/experiments/1/runs/abc"},
    "uncommitted": ["dvc.lock"],
}


def test_the_summary_answers_four_questions():
    answers = dict(sections(SUMMARY))
    assert answers["What happened"].startswith("policy: PPO on the scores of the reward model\nran: policy 1 min 20 s")
    assert "1 min 40 s in all: 1 min 20 s in stages (imports 9 s), 20 s orchestration" in answers["What happened"]
    assert "from the cache: sft" in answers["What happened"]
    assert "params.yaml changed: seed: 0 -> 1" in answers["What happened"]
    assert "gold/policy 0.800  [0.750, 0.850]" in answers["Was it good"]
    assert "kl_sequence: 3.2, bound 2, refused" in answers["Was it good"]
    assert "data/metrics/evaluate-samples.jsonl" in answers["Where to look"]
    assert "abc" in answers["Where to look"]
    assert "takes them back" in answers["What happened"]
    assert "dropped" not in answers["What happened"]
    assert answers["What next"].startswith(
        "nothing was promoted: change a setting or the data, and run again\nkl_sequence: data/metrics/figures/kl.png\n"
    )
    assert "git add dvc.lock && git commit" in answers["What next"]


def test_the_summary_says_what_was_dropped_and_how_answers_compare_without_gold():
    validated = {"cache_hit": True, "seconds": {}, "metrics": {"data/dropped_count": 1.0}}
    evaluation = {"win/gain": 0.25, "win/gain_low": 0.125, "win/gain_high": 0.5, "win/policy": 0.5}
    answers = dict(sections({**SUMMARY, "stages": {"validate": validated}, "evaluation": evaluation}))
    assert "1 row dropped, see data/validated/quarantine.jsonl" in answers["What happened"]
    assert "win/gain 0.250  [0.125, 0.500]\nwin/policy 0.500" in answers["Was it good"]


def test_the_summary_lists_the_practices_that_were_not_followed():
    warnings = ["value_warmup: ppo.value_warmup_iterations=0", "kl_limit: too far"]
    assert dict(sections({**SUMMARY, "practices": warnings}))["What to watch"] == "\n".join(warnings)
    assert "What to watch" not in dict(sections(SUMMARY))
    alarm = "data unlike those of the champion"
    assert dict(sections({**SUMMARY, "data_alarm": alarm}))["What to watch"] == alarm


def test_the_last_line_of_a_step_has_its_numbers():
    lines = []
    checklist = LineChecklist(lines.append)
    checklist.report("validate", [{"step": 0, "time": 0.0, "data/dropped_count": 1, "data/leaks": 0}])
    checklist.finish("validate", "done")
    assert lines[-1] == "[2/8] validate: done, data/dropped_count 1"


def test_a_pass_names_the_challenger_and_the_next_decision():
    passed = {**SUMMARY, "gate": {"passed": True, "refusals": []}, "uncommitted": []}
    answers = dict(sections(passed))
    assert "rlhf-policy version 3 is the challenger" in answers["Was it good"]
    assert "champion" in answers["What next"]
    assert "git" not in answers["What next"]


def test_the_summary_is_a_markdown_table():
    assert len(markdown(SUMMARY).splitlines()) == 2 + 4


def test_a_comparison_ends_with_its_table_where_to_look_and_what_next():
    mlflow = {"page": "#/compare-runs?runs=x", "run_page": "#/runs/x", "filter": "tags.`compare.key` = 'k'"}
    said = comparison_text({**SUMMARY, "table": "| | gold |\n|---|---|\n", "mlflow": mlflow})
    assert said.startswith("\n| | gold |\n|---|---|\n\n1 min 40 s in all: 1 min 20 s in stages")
    where, behind, following = said.splitlines()[-3:]
    assert where == "Where to look: `make ui`, then #/runs/x (the table) or #/compare-runs?runs=x (side by side)"
    assert behind == "The runs behind it: tags.`compare.key` = 'k'"
    assert following.startswith("What next: `rlhf pipeline run`")
