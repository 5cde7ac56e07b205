"""Stages that train nothing but report, resume, fail and die as real ones do. Run as `python fake_stages.py <section>`.

A file `plan-<section>.json` in the working directory says what happens once: {"at": step, "do": "kill" | "full" | "bug"
| "config" | "wait"}. The file goes before the deed is done, so that the next attempt passes. Who waits has made the
file `waiting`, and goes on when there is a file `release`.
"""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError
from rlcore.results import TrainResult
from tasks.intake.reporting.profile import Profile
from tasks.records import artifacts
from tasks.records.parameters import SECTIONS
from tasks.records.stage import main, stage

STEPS = 10
WAIT_SECONDS = 300.0
FOLDERS = {
    "demo_data": artifacts.RAW, "validate": artifacts.VALIDATED, "sft": artifacts.SFT_DIR,
    "reward": artifacts.REWARD_DIR, "evaluate": artifacts.FIGURES,
    **dict.fromkeys(artifacts.POLICY_ALGORITHMS, artifacts.POLICY_DIR),
}  # fmt: skip
GOLD = {"ppo": 0.8, "grpo": 0.7, "dpo": 0.6, "orpo": 0.5}
"""By what the policy's folder says it was trained with."""
KINDS = ("preferences", "prompts")


def profile_of(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Profile of rows of preferences."""
    profile = Profile()
    profile.add("preferences", rows)
    return profile.as_json()


REPORT = {
    "unit": "characters",
    "faults": [],
    "files": [],
    "counts": {kind: {"rows": 9000, "kept": 9000, "dropped": 0, "repaired": 0} for kind in KINDS},
    "splits": {kind: {"train": 8000, "validation": 500, "held_out": 500} for kind in KINDS},
    "findings": [],
    "leaks": [],
    "leak_shares": None,
    "lengths": {},
    "distinct_prompts": dict.fromkeys(KINDS, 2000),
    "pairs": {
        "chosen_longer_share": 0.5, "objectives": [], "agreement": {"count": 0, "mean": None}, "similarity": {},
    },
    "duplicates": {},
    "scripts": {},
    "profile": profile_of([{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}] * 9000),
}  # fmt: skip
"""What the validation says of good data."""


def fake_stage(config: object) -> None:
    """Report STEPS steps; save after every third; publish a folder that depends on section and seed alone."""
    section = next(name for name, known in SECTIONS.items() if known is type(config))
    with stage(section, config) as run:
        state = run.resume_dir / "step"
        done = int(state.read_text()) if state.exists() else 0
        sys.stderr.write(f"resumed at step {done}\n" if done else "")
        run.log(done, {"progress/total_steps": STEPS})
        for step in range(done + 1, STEPS + 1):
            run.log(step, {"fake/loss": 1 / step, "kl/ref_sequence_mean": step / 10, "fake/broken": float("nan")})
            misfortune(section, step)
            if step % 3 == 0:
                artifacts.write_text(state, str(step))
        if run.stage in artifacts.SAMPLED:
            run.log_samples(STEPS, [{"prompt": "1 + 1?", "before": "3", "after": "2"}])
        artifacts.write_text(FOLDERS[section] / "content.txt", f"{section} {config.seed}\n")
        if section == "validate":
            artifacts.write_json(artifacts.VALIDATION, REPORT)
        if section == "evaluate":
            measure()
        best = {"fake/loss": 1 / STEPS} | ({"validation/accuracy": 0.8} if section == "reward" else {})
        run.finish(TrainResult(FOLDERS[section], STEPS, {}, best))


def measure() -> None:
    """What an evaluation leaves, for four groups of prompts that all models answer alike."""
    gold = GOLD[(artifacts.POLICY_DIR / "content.txt").read_text().split()[0]]
    metrics = {"gold/sft": 0.4, "gold/policy": gold, "gold/gain": round(gold - 0.4, 3)}
    artifacts.write_json(artifacts.EVALUATE, metrics)
    rows = [
        {"model": model, "prompt": "1 + 1?", "response": "2", "group": group, "gold": value, "reward/score_mean": 0.5}
        for model, value in (("sft", 0.4), ("policy", gold))
        for group in "abcd"
    ]
    artifacts.write_rows(artifacts.ANSWERS, rows)


def misfortune(section: str, step: int) -> None:
    """Do what the plan of this stage says for this step."""
    plan = Path(f"plan-{section}.json")
    if not plan.exists() or json.loads(plan.read_text())["at"] != step:
        return
    deed = json.loads(plan.read_text())["do"]
    plan.unlink()
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data/models")
    if deed == "bug":
        raise KeyError("bug")
    if deed == "config":
        raise ConfigError("fake.key: found 3, expected 4. Change it.")
    Path("waiting").touch()
    release, deadline = Path("release"), time.monotonic() + WAIT_SECONDS
    while not release.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    release.unlink(missing_ok=True)


if __name__ == "__main__":
    main(fake_stage, SECTIONS[sys.argv.pop()])
