"""The layers of ARCHITECTURE.md hold, and a breach of any of them is noticed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources in which a breach can be planted."""
    copy = tmp_path_factory.mktemp("tree")
    for package in ("rlcore", "tasks", "flows", "benchmarks"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def lint(tree):
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, env={"PYTHONPATH": str(tree)}, check=False)


def test_the_layers_hold(tree):
    result = lint(tree)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("rlcore/errors.py", "import rlcore.ppo", "inside rlcore"),
        ("rlcore/reward/__init__.py", "import tasks.gate", "flows use tasks"),
        ("tasks/gate.py", "def f():\n    import flows.rlhf_pipeline", "flows use tasks"),
        ("rlcore/results.py", "import mlflow", "rlcore knows no orchestration"),
        ("rlcore/models/loading.py", "import trl", "only trl_trainers imports trl"),
        ("rlcore/configs/base.py", "import torch", "configs and errors load no torch"),
        ("rlcore/extra.py", "", "inside rlcore"),
    ],
)
def test_a_planted_breach_is_noticed(tree, module, line, contract):
    path = tree / module
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        result = lint(tree)
    finally:
        path.write_text(before) if before is not None else path.unlink()
    assert result.returncode == 1
    broken = [each for each in result.stdout.splitlines() if " BROKEN" in each]
    assert any(each.startswith(contract) for each in broken), result.stdout


def test_the_library_loads_without_torch_and_without_orchestration():
    code = "import sys; from rlcore import PPOConfig; print(*{'torch', 'prefect', 'mlflow', 'dvc'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
