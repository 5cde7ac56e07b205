"""A checkout in a temporary folder whose stages take no time."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.records import artifacts

ROOT = Path(__file__).resolve().parents[2]

DATA_OF = {
    "demo_data": ([], ["data/raw/demo"]),
    "validate": (["${validate.source}"], ["data/validated", "data/metrics/validation.json"]),
    "sft": (["data/validated"], ["data/models/sft"]),
    "reward": (["data/validated", "data/models/sft"], ["data/models/reward"]),
    "policy": (["data/validated", "data/models/sft", "data/models/reward"], ["data/models/policy"]),
    "evaluate": (
        ["data/models/policy", "data/models/champion"],
        ["data/metrics/evaluate.json", "data/metrics/evaluate-answers.jsonl", "data/metrics/figures"],
    ),
}

FAKE_REGISTER = """
import sys, types
register = types.ModuleType("tasks.registry.registration")
class Registered(str): challenger = False
register.Registered = Registered
register.register = lambda config, **facts: Registered(f"rlhf-policy version 1, gate passed: {facts['gate'].passed}")
sys.modules["tasks.registry.registration"] = register
"""
"""A registration that needs no model."""

RLHF = f"""{FAKE_REGISTER}
from rlcore.cli.main import main
sys.exit(main())
"""


def make_checkout(folder: Path) -> Path:
    """Write a checkout with the real parameters, the real DVC settings and fake stages."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "params.yaml", folder)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(ROOT / ".dvc" / name, folder / ".dvc")
    for name in (".gitignore", ".dvcignore", "tests/support/fake_stages.py"):
        shutil.copy(ROOT / name, folder)
    stages = {}
    for stage, (deps, outs) in DATA_OF.items():
        section = "${algorithm}" if stage == "policy" else stage
        samples = [str(artifacts.SAMPLES[stage])] if stage in artifacts.SAMPLES else []
        chosen = {"policy": ["algorithm", "reward_function"], "evaluate": ["algorithm"]}
        stages[stage] = {
            "cmd": f"python fake_stages.py {section}",
            "params": ["seed", section, *chosen.get(stage, [])],
            "deps": [*deps, "fake_stages.py"],
            "outs": [*outs, str(artifacts.TRACES[stage]), *samples],
        }
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}, indent=2))
    return folder


def plan(checkout: Path, section: str, **what: Any) -> None:
    """Let a fake stage do something once: at=step, do=what."""
    (checkout / "waiting").unlink(missing_ok=True)
    (checkout / f"plan-{section}.json").write_text(json.dumps(what))


def environment(checkout: Path, api: str | None = None) -> dict[str, str]:
    """For processes of the checkout: our code from this tree, none of the caller's settings for the tools.

    Args:
        checkout: as of make_checkout.
        api: address of a Prefect API; None leaves it to a temporary server.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "DVC_"))}
    ours = {"PYTHONPATH": str(ROOT), "HOME": str(checkout / ".rlhf"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return {**kept, **ours, **({"PREFECT_API_URL": api} if api else {})}


def start_rlhf(checkout: Path, *arguments: str, api: str | None = None) -> "subprocess.Popen[str]":
    """Start `rlhf` in the checkout; stdout and stderr come together."""
    return subprocess.Popen(
        [sys.executable, "-c", RLHF, *arguments], cwd=checkout, env=environment(checkout, api), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def rlhf(checkout: Path, *arguments: str, api: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `rlhf` in the checkout to its end."""
    process = start_rlhf(checkout, *arguments, api=api)
    said, _ = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, said)


def wait_until(condition: Any, seconds: float = 200.0) -> None:
    """Look five times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def processes_in(checkout: Path) -> list[str]:
    """Command lines of the processes whose working directory is the checkout."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if (folder / "cwd").resolve() == checkout.resolve() and not zombie:
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found
