"""A checkout in a temporary folder whose stages take no time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

DATA_OF = {
    "demo_data": ([], ["data/raw/demo"]),
    "validate": (["${validate.source}"], ["data/validated", "data/metrics/validation.json"]),
    "sft": (["data/validated"], ["data/models/sft"]),
    "reward": (["data/validated", "data/models/sft"], ["data/models/reward"]),
    "policy": (["data/validated", "data/models/sft", "data/models/reward"], ["data/models/policy"]),
    "evaluate": (
        ["data/models/policy", "data/models/champion"],
        ["data/metrics/evaluate.json", "data/metrics/figures"],
    ),
}

RUN = """
import sys, types
register = types.ModuleType("tasks.register")
register.register = lambda config, **facts: f"rlhf-policy version 1, gate passed: {facts['gate'].passed}"
sys.modules["tasks.register"] = register
from rlcore.cli.main import main
sys.exit(main())
"""
"""`rlhf`, with a registration that needs no model."""


def make_checkout(folder: Path) -> Path:
    """Write a checkout with the real parameters, the real DVC settings and fake stages."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "params.yaml", folder)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(ROOT / ".dvc" / name, folder / ".dvc")
    shutil.copy(ROOT / "tests" / "support" / "fake_stages.py", folder)
    stages = {}
    for stage, (deps, outs) in DATA_OF.items():
        section = "${algorithm}" if stage == "policy" else stage
        traces = [f"data/metrics/{stage}.jsonl"]
        if stage in ("sft", "reward", "policy", "evaluate"):
            traces.append(f"data/metrics/{stage}-samples.jsonl")
        stages[stage] = {
            "cmd": f"python fake_stages.py {section}",
            "params": ["seed", section, *(["algorithm"] if stage == "policy" else [])],
            "deps": [*deps, "fake_stages.py"],
            "outs": [*outs, *traces],
        }
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}, indent=2))
    return folder


def plan(checkout: Path, section: str, **what: Any) -> None:
    """Let a fake stage do something once: at=step, do=what."""
    (checkout / f"plan-{section}.json").write_text(json.dumps(what))


def environment(checkout: Path) -> dict[str, str]:
    """For processes of the checkout: our code from this tree, none of the caller's settings for the tools."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "DVC_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "HOME": str(checkout / "home"), "OMP_NUM_THREADS": "1"}


def rlhf(checkout: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `rlhf` in the checkout."""
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments], cwd=checkout, env=environment(checkout), capture_output=True, text=True,
        timeout=300, **options,
    )  # fmt: skip
