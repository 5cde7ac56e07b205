"""What is removed and what stays, on a checkout with five recorded pipeline runs of two stages.

Run 4 is the newest. Version n + 1 of the policy comes from run n. Version 2 is champion and was trained from version 1;
version 4 is challenger. So of all runs only run 2 may go.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rlcore.errors import ConfigError
from tasks.records import artifacts, environment, versioning
from tasks.records.cache import cached, is_whole, remembered, run_cache
from tasks.records.tracking import KEY_TAG, Tracker
from tasks.registry import store
from tasks.running import housekeeping
from tasks.serving.packaging import POINTER_TAG
from tests.support.checkout import make_checkout

pytestmark = pytest.mark.long

RUNS = range(5)
POLICY = f"dvc.{artifacts.POLICY_DIR}.md5"
SFT = f"dvc.{artifacts.SFT_DIR}.md5"
STAGES = {
    "sft": ([], ["data/models/sft"]),
    "policy": (["data/models/sft"], ["data/models/policy", "data/metrics/policy.jsonl"]),
}

MAKE = """
for out in "$@"; do
    case $out in *.*) mkdir -p $(dirname $out); file=$out;; *) mkdir -p $out; file=$out/weights;; esac
    { echo $out; grep ^seed params.yaml; } > $file
done
"""
"""What a stage does: a file, or a folder with a file, for each output, other ones for each seed."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The checkout, made once, with its settings of the environment."""
    root = make_checkout(tmp_path_factory.mktemp("gc") / "checkout")
    stages = {
        name: {
            "cmd": f"sh make.sh {' '.join(outs)}",
            "params": ["seed"],
            "deps": [*deps, "make.sh"],
            "outs": outs,
        }
        for name, (deps, outs) in STAGES.items()
    }
    (root / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    (root / "make.sh").write_text(MAKE)
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "DVC_"))]:
        del os.environ[name]
    environment.apply(root)
    git(root, "init", "-q")
    add_raw_data(root)
    tracker = Tracker(root)
    for run in RUNS:
        text = (root / "params.yaml").read_text()
        (root / "params.yaml").write_text(text.replace(f"seed: {max(run - 1, 0)}\n", f"seed: {run}\n", 1))
        dvc(root, "repro")
        dvc(root, "push", "--quiet", "--run-cache")
        record(tracker, root, run)
    client = tracker.client
    client.set_registered_model_alias("rlhf-policy", "champion", "2")
    client.set_registered_model_alias("rlhf-policy", "challenger", "4")
    yield root
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def checkout(recorded, tmp_path, monkeypatch):
    """The checkout in the state after the five runs, whatever a test did to it before."""
    saved, database = tmp_path / "saved", Path(".rlhf", "mlflow.db")
    shutil.copytree(recorded, saved)
    yield recorded
    for path in recorded.iterdir():
        if path.name != ".rlhf":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(recorded / ".rlhf" / "mlflow-artifacts")
    shutil.copytree(saved, recorded, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*"))
    # MLflow has the file open, so it is written to and not replaced.
    with sqlite3.connect(saved / database) as before, sqlite3.connect(recorded / database) as after:
        before.backup(after)


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments], cwd=root, check=True)


def dvc(root: Path, *arguments: str) -> str:
    settings = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add_raw_data(root: Path) -> None:
    """Two versions of a data set, the older one noted in git alone."""
    (root / "data" / "raw" / "mine").mkdir(parents=True)
    for content in ("old", "new"):
        (root / "data" / "raw" / "mine" / "rows").write_text(content)
        dvc(root, "add", "--quiet", "data/raw/mine")
        git(root, "add", "--force", "data/raw/mine.dvc")
        git(root, "commit", "-qm", content)


def record(tracker: Tracker, root: Path, run: int) -> None:
    """One pipeline run in MLflow with two stages, an SFT version without weights and a policy version with them."""
    pipeline = tracker.open_run(f"key-{run}", "rlhf-pipeline")
    pipeline.numbers({"gold/policy": 0.5})
    pipeline.text("table " * 100, "samples.txt")
    facts = {stage: versioning.facts(stage, root) for stage in STAGES}
    for stage, each in facts.items():
        log = tracker.open_run(f"key-{run}/{stage}", stage, pipeline)
        log.tags({f"dvc.{path}.md5": md5 for path, md5 in (*each.deps.items(), *each.outs.items())})
        log.close("FINISHED")
    pipeline.close("FINISHED")
    sft_md5, policy_md5 = facts["sft"].outs["data/models/sft"], facts["policy"].outs["data/models/policy"]
    add_version(tracker, "rlhf-sft", pipeline.run_id, {KEY_TAG: f"key-{run}", SFT: sft_md5}, weights=None)
    parents = {"parent.sft": f"rlhf-sft/{run + 1}", **({"parent.champion": "rlhf-policy/1"} if run == 1 else {})}
    tags = {KEY_TAG: f"key-{run}", POLICY: policy_md5, **parents}
    add_version(tracker, "rlhf-policy", pipeline.run_id, tags, weights=root / artifacts.POLICY_DIR)


def add_version(tracker: Tracker, name: str, run_id: str, tags: dict[str, str], weights: Path | None) -> None:
    client = tracker.client
    store.create_model(client, name)
    external = {} if weights else {POINTER_TAG: "true"}
    logged = client.create_logged_model(tracker.experiment_id, "model", source_run_id=run_id, tags=external)
    client.log_model_artifacts(logged.model_id, str(weights or Path(__file__).parent / "__init__.py"))
    client.finalize_logged_model(logged.model_id, "READY")
    client.create_model_version(
        name, source=f"models:/{logged.model_id}", run_id=run_id, tags=tags, model_id=logged.model_id
    )


def collect(root: Path, keep: int = 1, dry_run: bool = False) -> list[housekeeping.Removal]:
    return housekeeping.collect(root, keep, pytest.fail, dry_run=dry_run)


def cache_of(root: Path) -> Path:
    return root / ".dvc" / "cache" / "files" / "md5"


def version_of(run: int, model: str = "rlhf-policy"):
    return MlflowClient(os.environ["MLFLOW_TRACKING_URI"]).get_model_version(model, str(run + 1))


def has_weights(run: int) -> bool:
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    return bool(client.list_logged_model_artifacts(version_of(run).source.removeprefix("models:/")))


def kept_runs(root: Path) -> list[int]:
    """Runs whose policy and SFT model the cache has whole, and the remote within the checkout as well."""
    stores = (cache_of(root), root / ".rlhf" / "remote" / "files" / "md5")
    tags = {run: {**version_of(run).tags, **version_of(run, "rlhf-sft").tags} for run in RUNS}
    whole = {
        store: [all(is_whole(store, tags[run][each]) for each in (POLICY, SFT)) for run in RUNS] for store in stores
    }
    assert whole[stores[0]] == whole[stores[1]]
    return [run for run in RUNS if whole[stores[0]][run]]


def test_a_dry_run_lists_and_removes_nothing(checkout):
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file() and "tmp" not in path.parts}
    removals = collect(checkout, dry_run=True)
    after = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file() and "tmp" not in path.parts}
    changed = {path for path in before if before[path] != after.get(path)}
    assert changed <= {path for path in before if ".rlhf" in path.parts and path.suffix in (".db", ".lock")}
    named = {removal.kind: removal for removal in removals}
    weights = [removal.name for removal in removals if removal.kind == "weights of versions"]
    assert weights == ["rlhf-policy version 3"]
    assert named["files of runs"].size == len("table " * 100)
    # In the cache and in the remote within the checkout: two executions; policy and SFT model are a list and a file
    # each, the trace is a file.
    assert len([removal for removal in removals if removal.kind == "remembered executions"]) == 2 * 2
    assert len([removal for removal in removals if removal.kind == "files of the DVC cache"]) == 2 * 5


def test_only_the_run_that_nobody_needs_goes(checkout):
    assert kept_runs(checkout) == [0, 1, 2, 3, 4]
    collect(checkout)
    assert kept_runs(checkout) == [0, 1, 3, 4], "newest run, challenger, champion and the champion before it"
    assert [run for run in RUNS if has_weights(run)] == [0, 1, 3, 4]
    assert version_of(2).tags[housekeeping.REMOVED_TAG] == "true"
    assert collect(checkout) == [], "a second time there is nothing"


def test_what_mlflow_shows_of_an_old_run_stays(checkout):
    collect(checkout)
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    run = client.get_run(version_of(2).run_id)
    assert run.data.metrics["gold/policy"] == 0.5
    assert run.data.tags[housekeeping.REMOVED_TAG] == "true"
    assert client.list_artifacts(run.info.run_id) == []
    assert [file.path for file in client.list_artifacts(version_of(3).run_id)] == ["samples.txt"]


def test_the_workspace_and_the_champion_come_from_the_cache_afterwards_and_the_old_run_does_not(checkout):
    collect(checkout)
    assert "Running stage" not in dvc(checkout, "repro")
    for seed, runs in ((1, False), (2, True)):
        text = (checkout / "params.yaml").read_text()
        current = next(line for line in text.splitlines() if line.startswith("seed:"))
        (checkout / "params.yaml").write_text(text.replace(current, f"seed: {seed}", 1))
        assert ("Running stage" in dvc(checkout, "repro")) == runs


def test_raw_data_of_any_time_stay(checkout):
    collect(checkout)
    old = "149603e6c03516362a8da23f624db945"  # md5 of "old"
    assert cached(cache_of(checkout), old).read_text() == "old"


def test_the_workspace_stays_where_it_is_older_than_the_newest_runs(checkout):
    git(checkout, "stash", "--quiet", "--include-untracked", "--", "dvc.lock")
    text = (checkout / "params.yaml").read_text()
    (checkout / "params.yaml").write_text(text.replace("seed: 4\n", "seed: 2\n", 1))
    dvc(checkout, "repro")
    collect(checkout)
    assert kept_runs(checkout) == [0, 1, 2, 3, 4]


def test_the_champion_before_this_one_can_be_rolled_back_to(checkout):
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    store.note(client, store.Move("2", "3", "somebody", store.now()))
    collect(checkout)
    assert kept_runs(checkout) == [0, 1, 2, 3, 4]


def test_a_champion_that_was_clicked_and_never_audited_stays_and_so_does_the_one_before_it(checkout):
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    # Version 3 is champion by our own records; a person clicked version 1, and took version 4's alias away.
    store.note(client, store.Move("3", None, "somebody", store.now()))
    client.set_registered_model_alias("rlhf-policy", "champion", "1")
    client.delete_registered_model_alias("rlhf-policy", "challenger")
    collect(checkout)
    # Of run 1, version 2 is nobody's ancestor any more; of run 3, version 4 lost its alias.
    assert kept_runs(checkout) == [0, 2, 4]
    assert [run for run in RUNS if has_weights(run)] == [0, 2, 4]


@pytest.mark.parametrize("after", [1, 4, 8])
def test_a_crash_half_way_harms_nothing_and_the_next_time_ends_it(checkout, after):
    planned = collect(checkout, dry_run=True)
    assert len(planned) > after
    for removal in planned[:after]:
        removal.remove()
    for kept in (cache_of(checkout), checkout / ".rlhf" / "remote" / "files" / "md5"):
        for run in (0, 1, 3, 4):
            assert is_whole(kept, version_of(run).tags[POLICY])
            assert is_whole(kept, version_of(run, "rlhf-sft").tags[SFT])
    # No execution is remembered whose outputs are gone: DVC would fail on it.
    for execution in remembered(cache_of(checkout)):
        assert all(is_whole(cache_of(checkout), md5) for md5 in execution.outs.values())
    assert not [folder for folder in run_cache(cache_of(checkout)).glob("*/*") if not list(folder.iterdir())]
    collect(checkout)
    assert kept_runs(checkout) == [0, 1, 3, 4]
    assert collect(checkout) == []


def test_faulty_requests_are_refused_before_anything_is_looked_at(checkout, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="--keep: found 0, expected at least 1"):
        collect(checkout, keep=0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(ConfigError, match="knows no pipeline run of this checkout"):
        collect(checkout)
    dvc(checkout, "config", "--local", "cache.dir", str(tmp_path / "shared"))
    with pytest.raises(ConfigError, match="lies outside this checkout"):
        collect(checkout)
