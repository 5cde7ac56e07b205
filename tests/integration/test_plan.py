"""What a plan says comes true: `dvc repro` runs the stages that it names and no others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.records import artifacts
from tasks.records.parameters import resolve
from tasks.records.versioning import place_champion, prepare
from tasks.running.plan import plan
from tasks.running.plan_table import plan_table, size
from tests.support.checkout import environment, make_checkout, rlhf

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout without git that ran once with PPO and once with DPO, and is back at PPO."""
    root = make_checkout(tmp_path_factory.mktemp("plan") / "checkout")
    (root / ".rlhf").mkdir()
    previous = os.environ.get("DVC_SITE_CACHE_DIR")
    os.environ["DVC_SITE_CACHE_DIR"] = str(root / ".rlhf" / "dvc")
    prepare(root)
    place_champion(None, root)
    for algorithm in ("ppo", "dpo", "ppo"):
        set_algorithm(root, algorithm)
        repro(root)
    yield root
    os.environ.pop("DVC_SITE_CACHE_DIR")
    if previous is not None:
        os.environ["DVC_SITE_CACHE_DIR"] = previous


def set_algorithm(root: Path, algorithm: str) -> None:
    text = (root / "params.yaml").read_text()
    known = resolve(root / "params.yaml").parameters.algorithm
    (root / "params.yaml").write_text(text.replace(f"algorithm: {known}", f"algorithm: {algorithm}", 1))


def repro(root: Path) -> str:
    settings = environment(root)
    settings["PATH"] = f"{Path(sys.executable).parent}:{settings['PATH']}"
    command = [sys.executable, "-m", "dvc", "repro"]
    return subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=True).stdout


def planned(root: Path, *sets: str, force: tuple[str, ...] = ()) -> dict[str, str]:
    """Stage to action, leaving out what is up to date."""
    found = plan(root, resolve(root / "params.yaml", sets=sets), force)
    return {stage.stage: stage.action for stage in found.stages if stage.action != "up to date"}


def reasons(root: Path, stage: str, *sets: str) -> tuple[str, ...]:
    found = plan(root, resolve(root / "params.yaml", sets=sets))
    return next(each.reasons for each in found.stages if each.stage == stage)


def test_after_a_run_nothing_would_run(checkout):
    assert planned(checkout) == {}


def test_a_setting_runs_its_stage_and_those_below(checkout):
    below = {"reward": "runs", "policy": "runs", "evaluate": "runs"}
    assert planned(checkout, "reward.num_epochs=7") == below
    assert reasons(checkout, "reward", "reward.num_epochs=7") == ("reward.num_epochs: 2 -> 7",)
    assert reasons(checkout, "policy", "reward.num_epochs=7") == ("reward runs before it",)
    assert planned(checkout, "gate.min_distinct_ratio=0.5") == {}


def test_what_ran_before_comes_from_the_cache_with_all_that_follows(checkout):
    assert planned(checkout, "algorithm=dpo") == {"policy": "from the cache", "evaluate": "from the cache"}
    # Another seed of DPO was never trained.
    assert planned(checkout, "algorithm=dpo", "dpo.seed=5") == {"policy": "runs", "evaluate": "runs"}


def test_a_forced_stage_runs_and_so_may_what_follows(checkout):
    assert planned(checkout, force=("evaluate",)) == {"evaluate": "runs"}


def test_changed_code_is_named(checkout):
    code = checkout / "fake_stages.py"
    text = code.read_text()
    try:
        code.write_text(text + "# changed\n")
        assert set(planned(checkout).values()) == {"runs"}
        assert reasons(checkout, "demo_data") == ("code changed: fake_stages.py",)
    finally:
        code.write_text(text)


def test_data_of_ones_own_skip_the_demo_and_are_named_when_they_are_missing(checkout):
    result = rlhf(checkout, "pipeline", "plan", "--set", "validate.source=mine")
    assert result.returncode == 2
    assert "found no folder mine (validate.source)" in result.stdout
    (checkout / "mine").mkdir()
    (checkout / "mine" / "rows").write_text("rows")
    said = planned(checkout, "validate.source=mine")
    assert said["demo_data"] == "skipped"
    assert said["validate"] == "runs"


def test_a_lost_output_comes_from_the_cache_and_a_lost_cache_makes_work(checkout):
    trace = checkout / artifacts.TRACES["policy"]
    content = trace.read_bytes()
    trace.unlink()
    assert planned(checkout) == {"policy": "from the cache"}
    kept = checkout / ".dvc" / "cache" / "files" / "md5"
    md5 = artifacts.content_md5(checkout / artifacts.SFT_DIR / "content.txt")
    away = kept / md5[:2] / md5[2:]
    away.rename(checkout / "away")
    (checkout / artifacts.TRACES["sft"]).rename(checkout / "sft-trace")
    assert planned(checkout)["sft"] == "runs"
    assert "the cache lost its outputs" in reasons(checkout, "sft")[0]
    (checkout / "away").rename(away)
    (checkout / "sft-trace").rename(checkout / artifacts.TRACES["sft"])
    trace.write_bytes(content)


def test_an_output_that_somebody_changed_comes_from_the_cache(checkout):
    changed = checkout / artifacts.SFT_DIR / "content.txt"
    content = changed.read_text()
    # As long as before: only its content tells.
    changed.write_text(content.swapcase())
    assert planned(checkout) == {"sft": "from the cache"}
    assert "Running stage" not in repro(checkout)
    assert changed.read_text() == content
    assert planned(checkout) == {}


def test_the_estimate_is_of_the_last_run_and_grows_with_the_steps(checkout):
    once, twice = (
        next(
            each
            for each in plan(checkout, resolve(checkout / "params.yaml", sets=sets)).stages
            if each.stage == "policy"
        )
        for sets in (["ppo.gamma=0.9"], ["ppo.gamma=0.9", "ppo.num_iterations=72"])
    )
    assert once.seconds > 0
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert 0.005 < once.memory_gib < 16
    published = (artifacts.POLICY_DIR / "content.txt", artifacts.TRACES["policy"], artifacts.SAMPLES["policy"])
    outputs = [checkout / path for path in published]
    assert once.disk_bytes == 2 * sum(path.stat().st_size for path in outputs)


def files_of(root: Path) -> dict[Path, int]:
    """When each file was written; what this machine alone needs is left out."""
    files = (path for path in root.rglob("*") if not {".rlhf", "tmp"} & set(path.relative_to(root).parts))
    return {path: path.stat().st_mtime_ns for path in files if path.is_file()}


def test_the_command_prints_a_table_or_json_and_changes_nothing(checkout):
    before = files_of(checkout)
    result = rlhf(checkout, "pipeline", "plan", "--set", "sft.max_steps=2000")
    assert result.returncode == 0, result.stdout
    assert "4 of 6 stages would run" in result.stdout
    assert "sft.max_steps: 1000 -> 2000" in result.stdout
    assert "Nothing was started." in result.stdout
    found = json.loads(rlhf(checkout, "pipeline", "plan", "--seed", "1", "--json").stdout)
    assert [stage["action"] for stage in found["stages"]] == ["runs"] * 6
    assert found["changed_parameters"] == ["seed: 0 -> 1"]
    assert files_of(checkout) == before


def test_a_plan_of_a_new_checkout_says_that_nothing_ran(tmp_path):
    root = make_checkout(tmp_path / "new")
    prepare(root)
    found = plan(root, resolve(root / "params.yaml"))
    assert found.stages[0].reasons == ("it never ran here",)
    assert found.stages[0].seconds is None
    assert {stage.action for stage in found.stages} == {"runs"}
    plan_table(found)


def test_sizes_in_words():
    assert [size(count) for count in (5, 2048, 3 << 20, 5 << 30)] == ["5 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
