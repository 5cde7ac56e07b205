"""A stage process: its trace, where it resumes, how it ends."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rlcore.configs import SFTConfig
from rlcore.results import TrainResult
from tasks.records import artifacts
from tasks.records.stage import drop_states, stage, stage_key
from tasks.records.trace import Trace, TraceFollower, finite
from tests.support.checkout import ROOT


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A working directory with a pipeline of one stage that reads one file."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("seed: 0\nreward: a\nsft: {max_steps: 3}\nvalidate: {source: raw}\n")
    Path("dvc.yaml").write_text(
        "stages: {sft: {cmd: 'true', params: [reward], deps: ['${validate.source}/rows', code.py]}}\n"
    )
    Path("raw").mkdir()
    Path("raw/rows").write_text("1\n")
    Path("code.py").write_text("")
    return tmp_path


@contextmanager
def interrupted(section, config):
    """A stage that a fault ends after the block."""
    with suppress(KeyError), stage(section, config) as run:
        yield run
        raise KeyError


def steps(path):
    return [row["step"] for row in artifacts.read_rows(path)]


def test_a_report_that_is_not_finite_says_so():
    # NaN and infinity would break JSON and turn into 1.8e308 in a store of numbers.
    assert finite({"loss": math.nan, "kl": -math.inf, "reward": 1}) == {
        "loss_non_finite": 1.0,
        "kl_non_finite": 1.0,
        "reward": 1.0,
    }


def test_a_resumed_trainer_repeats_steps_that_are_kept_once(tmp_path):
    first = Trace(tmp_path / "trace")
    first.append(0, {"progress/total_steps": 9})
    for step in range(1, 8):
        first.append(step, {"loss": step})
    # Killed after step 7 with a checkpoint of step 5: the trainer goes on with step 6.
    second = Trace(tmp_path / "trace")
    second.append(5, {"progress/total_steps": 9})
    for step in (6, 7, 8):
        second.append(step, {"loss": 10 * step})
    assert steps(tmp_path / "trace") == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["loss"] for row in artifacts.read_rows(tmp_path / "trace")[5:]] == [5, 60, 70, 80]


def test_two_reports_of_one_step_are_both_kept(tmp_path):
    trace = Trace(tmp_path / "trace")
    for _ in range(2):
        trace = Trace(tmp_path / "trace")
        trace.append(3, {"loss": 1.0})
        trace.append(3, {"validation/loss": 2.0})
    assert [set(row) - {"step", "time"} for row in artifacts.read_rows(tmp_path / "trace")] == [
        {"loss"},
        {"validation/loss"},
    ]


def test_half_a_line_of_a_killed_writer_goes(tmp_path):
    Trace(tmp_path / "trace").append(1, {"loss": 1.0})
    with (tmp_path / "trace").open("ab") as file:
        file.write(b'{"step": 2, "lo')
    Trace(tmp_path / "trace").append(2, {"loss": 2.0})
    assert steps(tmp_path / "trace") == [1, 2]


def test_a_follower_waits_for_whole_lines_and_rereads_after_a_cut(tmp_path):
    path = tmp_path / "trace"
    follower = TraceFollower(path)
    assert follower.read() == []
    for step in (1, 2):
        Trace(path).append(step, {"loss": step})
    assert [row["step"] for row in follower.read()] == [1, 2]
    with path.open("ab") as file:
        file.write(b'{"step": 3')
    assert follower.read() == []
    Trace(path).append(2, {"loss": 2})
    assert [row["step"] for row in follower.read()] == [1, 2]


def test_the_state_stays_until_settings_data_or_code_change(checkout):
    config = SFTConfig(max_steps=3)
    keys = {stage_key("sft", config), stage_key("sft", SFTConfig(max_steps=3))}
    assert len(keys) == 1
    keys.add(stage_key("sft", SFTConfig(max_steps=3, seed=1)))
    Path("raw/rows").write_text("2\n")
    keys.add(stage_key("sft", config))
    Path("code.py").write_text("pass")
    keys.add(stage_key("sft", config))
    # A parameter that stands in no section of its own.
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("reward: a", "reward: b"))
    keys.add(stage_key("sft", config))
    assert len(keys) == 5


def record(stage_name):
    """What DVC notes once it has hashed and kept the outputs of a stage."""
    trace = artifacts.TRACES[stage_name]
    outs = [{"path": str(trace), "hash": "md5", "md5": artifacts.content_md5(trace)}]
    artifacts.LOCK.write_text(json.dumps({"schema": "2.0", "stages": {stage_name: {"outs": outs}}}))


def test_an_interrupted_stage_resumes_and_a_recorded_one_begins_anew(checkout):
    config = SFTConfig(max_steps=3)
    with interrupted("sft", config) as run:
        (run.resume_dir / "state").write_text("step 1")
        run.log(1, {"loss": 1.0})
    with stage("sft", config) as run:
        assert (run.resume_dir / "state").read_text() == "step 1"
        run.log(2, {"loss": 0.5})
        run.finish(TrainResult(artifacts.SFT_DIR, 2, {}, {"loss": 0.5}))
    trace = artifacts.read_rows(artifacts.TRACES["sft"])
    assert [row["step"] for row in trace] == [1, 2, 2]
    assert (trace[-1]["best/step"], trace[-1]["best/loss"]) == (2, 0.5)
    assert trace[-1]["time/stage_s"] > 0
    # Python alone takes some megabytes; no test process comes near 64 GiB.
    assert 0.005 < trace[-1]["memory/peak_gib"] < 64
    record("sft")
    with stage("sft", config) as run:
        assert not (run.resume_dir / "state").exists()
        run.log(2, {"loss": 0.4})
        run.finish()
    assert steps(artifacts.TRACES["sft"]) == [2, 2]


@pytest.mark.parametrize("locked", [False, True], ids=["first run", "an older run is recorded"])
def test_a_kill_before_dvc_has_the_outputs_does_not_train_from_zero(checkout, locked):
    config = SFTConfig(max_steps=3)
    if locked:
        with stage("sft", SFTConfig(max_steps=2)) as run:
            run.finish()
        record("sft")
    with stage("sft", config) as run:
        (run.resume_dir / "state").write_text("step 3")
        run.log(3, {"loss": 0.5})
        run.finish()
    # DVC is killed while it reads data/models/sft; its next attempt removes the outputs and starts the stage again.
    artifacts.TRACES["sft"].unlink()
    with stage("sft", config) as run:
        assert (run.resume_dir / "state").read_text() == "step 3"
        run.finish()
    # The report, and what the stage took.
    assert steps(artifacts.TRACES["sft"]) == [3, 3]


def test_the_state_goes_once_dvc_has_the_outputs(checkout):
    with stage("sft", SFTConfig()) as run:
        (run.resume_dir / "state").write_text("step 3")
        run.finish()
    drop_states("sft", checkout)
    assert run.resume_dir.exists()
    record("sft")
    drop_states("sft", checkout)
    assert not run.resume_dir.exists()


def test_samples_of_a_step_are_kept_once(checkout):
    for loss, opened in ((1.0, interrupted), (2.0, stage)):
        with opened("ppo", SFTConfig()) as run:
            run.log_samples(2, [{"response": f"a {loss}"}, {"response": "b"}])
            run.log(2, {"loss": loss})
            run.log(4, {"loss": loss})
            run.log_samples(4, [{"response": "later"}])
            if opened is stage:
                run.finish()
    samples = artifacts.read_rows(artifacts.SAMPLES["policy"])
    assert [(row["step"], row["response"]) for row in samples] == [(2, "a 2.0"), (2, "b"), (4, "later")]


def test_old_states_do_not_fill_the_disk(checkout):
    for seed in range(4):
        with interrupted("sft", SFTConfig(seed=seed)) as run:
            pass
        os.utime(run.resume_dir.parent, (seed, seed))
    kept = {folder.name for folder in artifacts.scratch("sft").glob("*/")}
    assert kept == {stage_key("sft", SFTConfig(seed=seed)) for seed in (2, 3)}


SCRIPT = """
import sys, time
from pathlib import Path
from rlcore.configs import SFTConfig
from tasks.records.stage import main

def train(config):
    \"\"\"Train.\"\"\"
    {body}

main(train, SFTConfig)
"""


def run_stage(body, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], env=environment, stderr=subprocess.PIPE, text=True, **options
    )


def exit_note():
    return json.loads(artifacts.exit_file("sft").read_text())


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("pass", 0, ""),
        ("raise OSError(28, 'No space left on device', 'data/x')", 75, "sft: data/x: No space left on device. Free"),
        ("raise KeyError('a bug')", 1, "sft: KeyError: 'a bug'. The stack trace is in .rlhf/logs/sft.log"),
    ],
)
def test_a_process_ends_with_its_code_one_line_and_a_note(checkout, body, code, line):
    process = run_stage(body)
    _, said = process.communicate(timeout=60)
    assert process.returncode == exit_note()["exit_code"] == code
    assert said.startswith(line)
    assert said.count("\n") == (code != 0)
    assert ("Traceback" in artifacts.log_file("sft").read_text()) == (code != 0)


def test_a_faulty_setting_is_one_line(checkout):
    Path("params.yaml").write_text("seed: 0\nsft: {max_step: 3}\n")
    process = run_stage("pass")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.startswith("sft: sft.max_step: unknown key.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_stage_clean_up(checkout, number):
    body = "\n    ".join(["try: Path('started').touch(), time.sleep(60)", "finally: Path('cleaned').touch()"])
    process = run_stage(body)
    while not Path("started").exists():
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == exit_note()["exit_code"] == 143
    assert Path("cleaned").exists()


STEPS = """
    from rlcore.results import StopTraining
    from tasks.records import stage as stages
    stages.SAVING_SECONDS = {patience}
    with stages.stage("sft", config) as run:
        step, reports = 0, False
        try:
            while True:
                step, reports = step + 1, True
                run.log(step, dict(loss=1.0))
                reports = False
                Path("started").touch()
                time.sleep({seconds})
        except StopTraining:
            Path("stopped").write_text(str(reports))
            raise
"""


@pytest.mark.parametrize(
    ("seconds", "patience", "between_steps"), [(0.3, 60.0, True), (60.0, 0.3, False)], ids=["short step", "long step"]
)
def test_a_signal_stops_training_between_two_steps_unless_one_takes_too_long(
    checkout, seconds, patience, between_steps
):
    process = run_stage(STEPS.format(seconds=seconds, patience=patience).strip())
    while not Path("started").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == exit_note()["exit_code"] == 143
    assert Path("stopped").read_text() == str(between_steps)


def test_opening_a_stage_loads_nothing_heavy():
    code = "import sys, tasks.records.stage; print(*{'torch', 'mlflow', 'prefect', 'dvc', 'pandas'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
