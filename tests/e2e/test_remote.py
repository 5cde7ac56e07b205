"""What a run made is in the remote before it is registered: a clone that pulls has nothing left to run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import environment, make_checkout, rlhf
from tests.support.runs import runs_of

pytestmark = pytest.mark.long


def dvc(checkout: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    bin_folder = str(Path(sys.executable).parent)
    settings = environment(checkout)
    settings |= {"PATH": f"{bin_folder}:{settings['PATH']}", "DVC_SITE_CACHE_DIR": str(checkout / ".rlhf" / "dvc")}
    done = subprocess.run(command, cwd=checkout, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def test_a_fresh_clone_that_pulls_has_nothing_left_to_run(tmp_path, prefect_api):
    checkout = make_checkout(tmp_path / "checkout")
    git(checkout, "init", "-q")
    dvc(checkout, "remote", "add", "--default", "shelf", str(tmp_path / "shelf"))
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 0, result.stdout
    assert runs_of(checkout).pipelines()[0].data.tags["dvc.pushed"] == "true"
    git(checkout, "add", "--all")
    git(checkout, "commit", "-qm", "run")

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(checkout), str(clone))
    assert not (clone / "data" / "metrics").exists()
    dvc(clone, "pull")
    said = dvc(clone, "repro")
    assert "Running stage" not in said
    assert said.count("didn't change, skipping") == 7, "six stages and the champion's note"
    assert git(clone, "status", "--porcelain") == ""


def test_a_run_whose_settings_were_used_before_comes_from_the_remote_too(tmp_path, prefect_api):
    checkout = make_checkout(tmp_path / "checkout")
    git(checkout, "init", "-q")
    dvc(checkout, "remote", "add", "--default", "shelf", str(tmp_path / "shelf"))
    for seed in ("1", "2"):
        assert rlhf(checkout, "pipeline", "run", "--seed", seed, api=prefect_api).returncode == 0
    git(checkout, "add", "--all")
    git(checkout, "commit", "-qm", "run")

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(checkout), str(clone))
    dvc(clone, "pull", "--run-cache")
    (clone / "params.yaml").write_text((clone / "params.yaml").read_text().replace("seed: 2", "seed: 1"))
    assert "Running stage" not in dvc(clone, "repro", "--pull")


def test_a_remote_that_is_away_costs_a_warning_and_no_work(tmp_path, prefect_api):
    checkout = make_checkout(tmp_path / "checkout")
    (tmp_path / "file").write_text("no folder can be made below a file")
    dvc(checkout, "config", "core.no_scm", "true", "--local")
    dvc(checkout, "remote", "add", "--default", "shelf", str(tmp_path / "file" / "shelf"))
    result = rlhf(checkout, "pipeline", "run", api=prefect_api)
    assert result.returncode == 0, result.stdout
    file = tmp_path / "file"
    assert f"DVC remote shelf ({file}/shelf): {file}: Not a directory. The run goes on" in result.stdout
    assert "Trying again in 5 s." in result.stdout
    assert "The version is registered all the same; run `dvc push --run-cache` before the next run." in result.stdout
    (pipeline,) = runs_of(checkout).pipelines()
    assert pipeline.data.tags["dvc.pushed"] == "false"
    assert pipeline.info.status == "FINISHED"
