"""What dvc.yaml declares as metrics and plots is what DVC compares between two commits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.records import artifacts
from tests.support.checkout import ROOT, environment

pytestmark = pytest.mark.long

MEASURE = """
import sys
from pathlib import Path
from tasks.measuring.curves import write_curves
from tasks.records import artifacts

seed = int(Path("params.yaml").read_text().split()[-1])
for out in sys.argv[1:]:
    if Path(out).suffix:
        artifacts.write_text(Path(out), f"{seed}\\n")
    else:
        artifacts.write_text(Path(out) / "content.txt", f"{seed}\\n")
trace = [{"step": step, "kl/ref_sequence_mean": step * (1 + seed) / 8} for step in range(1, 4)]
write_curves(trace, artifacts.METRICS / "curves")
artifacts.write_json(artifacts.EVALUATE, {"gold/policy": 0.5 + seed / 4, "kl/ref_sequence_mean": 3 * (1 + seed) / 8})
"""
"""The stage `evaluate`, less the measuring: its outputs, with numbers that follow from the seed."""


def dvc(root: Path, *arguments: str) -> str:
    settings = environment(root) | {"DVC_SITE_CACHE_DIR": str(root / ".rlhf" / "dvc")}
    settings["PATH"] = f"{Path(sys.executable).parent}:{settings['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments], cwd=root, check=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A repository with the metrics, plots and outputs of the real dvc.yaml, and a commit for each of two seeds."""
    root = tmp_path_factory.mktemp("diff") / "checkout"
    (root / ".dvc").mkdir(parents=True)
    real: dict[str, Any] = YAML(typ="safe").load(ROOT / "dvc.yaml")
    measured = real["stages"]["evaluate"]
    outs = " ".join([*measured["outs"], *measured["metrics"]])
    stage = {"cmd": f"python measure.py {outs}", "params": ["seed"], **{k: measured[k] for k in ("metrics", "outs")}}
    (root / "dvc.yaml").write_text(json.dumps({"stages": {"evaluate": stage}, "plots": real["plots"]}))
    (root / "measure.py").write_text(MEASURE)
    (root / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    git(root, "init", "-q")
    for seed in (0, 1):
        (root / "params.yaml").write_text(f"seed: {seed}\n")
        dvc(root, "repro", "--quiet")
        git(root, "add", "--all")
        git(root, "commit", "-qm", f"seed {seed}")
    return root


def test_metrics_of_two_commits_are_compared(checkout):
    found = json.loads(dvc(checkout, "metrics", "diff", "HEAD~1", "HEAD", "--json"))
    assert found == {
        str(artifacts.EVALUATE): {
            "gold/policy": {"old": 0.5, "new": 0.75, "diff": 0.25},
            "kl/ref_sequence_mean": {"old": 0.375, "new": 0.75, "diff": 0.375},
        }
    }


def test_plots_of_two_commits_hold_both_courses(checkout):
    found = json.loads(dvc(checkout, "plots", "diff", "HEAD~1", "HEAD", "--json"))
    kl = next(plots for name, plots in found["data"].items() if name.startswith("KL to the SFT model"))
    points = {
        (point["rev"], int(point["step"]), float(point["kl"]))
        for plot in kl
        for point in plot["content"]["data"]["values"]
    }
    # The KL of seed 0 rises by 1/8 in a step, that of seed 1 by 2/8.
    courses = (("HEAD~1", 1), ("HEAD", 2))
    assert points == {(revision, step, step * rise / 8) for revision, rise in courses for step in (1, 2, 3)}
    shown = {name.split(",")[0] for name in found["data"]}
    assert shown == {"KL to the SFT model", "Reward", "Pairs in the right order"}
