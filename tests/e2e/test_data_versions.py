"""Data of one's own under git and DVC: what differs from an earlier commit, and training on the data of that commit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.records import artifacts
from tasks.records.versioning import facts
from tests.support.checkout import environment, make_checkout, rlhf

pytestmark = pytest.mark.long

OWN = "data/raw/own"
ROWS = [{"prompt": f"{n} + 1?", "chosen": f"{n + 1}", "rejected": "7"} for n in range(4)]


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def said_by(checkout: Path, *arguments: str, api: str | None = None) -> str:
    result = rlhf(checkout, *arguments, api=api)
    assert result.returncode == 0, result.stdout
    return result.stdout


def add(checkout: Path, rows: list[dict[str, str]]) -> str:
    """Add rows by the command, and commit as it says; the commit."""
    file = checkout.parent / "new.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = said_by(checkout, "data", "add", str(file), "--name", "own")
    assert f"next: git add {OWN}.dvc data/raw/.gitignore && git commit" in said
    git(checkout, "add", f"{OWN}.dvc", "data/raw/.gitignore")
    git(checkout, "commit", "-qm", f"{len(rows)} rows more")
    return git(checkout, "rev-parse", "HEAD").strip()


def data_md5(checkout: Path) -> str:
    """Of the data that the stage `validate` read last, by dvc.lock."""
    return facts("validate", checkout).deps[OWN]


def test_an_old_version_is_compared_checked_out_and_trained_on(tmp_path, prefect_api):
    checkout = make_checkout(tmp_path / "checkout")
    git(checkout, "init", "-q")
    git(checkout, "config", "user.name", "t")
    git(checkout, "config", "user.email", "t@localhost")
    git(checkout, "add", "--all")
    git(checkout, "commit", "-qm", "start")
    for name in ("staged.txt", "new.txt"):
        (checkout / name).write_text("of a person")
    with (checkout / "fake_stages.py").open("a") as code:
        code.write("# edited\n")

    first = add(checkout, ROWS[:2])
    git(checkout, "add", "staged.txt")
    settings = ("--set", f"validate.source={OWN}", "--set", "register.commit=true")
    said_by(checkout, "pipeline", "run", *settings, api=prefect_api)
    old = data_md5(checkout)
    run = git(checkout, "show", "--format=%s", "--name-only", "HEAD").split("\n")
    assert run[0].startswith("rlhf-policy version 1, gate passed")
    assert set(run[2:-1]) == {"data/models/champion.dvc", "dvc.lock", "params.yaml"}
    assert git(checkout, "status", "--porcelain").splitlines() == [" M fake_stages.py", "A  staged.txt", "?? new.txt"]

    add(checkout, [{**ROWS[0], "rejected": "8"}, *ROWS[2:]])
    said = said_by(checkout, "data", "diff", first)
    assert "preferences.jsonl: 3 added; 2 rows then, 5 here" in said
    assert said.count('  + {"chosen"') == 3
    said_by(checkout, "pipeline", "run", api=prefect_api)
    assert data_md5(checkout) != old

    git(checkout, "checkout", "-q", first, "--", f"{OWN}.dvc")
    settings_of = environment(checkout) | {"DVC_SITE_CACHE_DIR": str(checkout / ".rlhf" / "dvc")}
    subprocess.run(
        [sys.executable, "-m", "dvc", "checkout", f"{OWN}.dvc"], cwd=checkout, env=settings_of, check=True,
        capture_output=True,
    )  # fmt: skip
    assert artifacts.read_rows(checkout / OWN / "preferences.jsonl") == ROWS[:2]
    assert "preferences.jsonl: unchanged; 2 rows then, 2 here" in said_by(checkout, "data", "diff", first)
    # Another seed was never trained: the stages run, on the old data.
    said = said_by(checkout, "pipeline", "run", "--seed", "1", api=prefect_api)
    assert "sft: done in" in said
    assert data_md5(checkout) == old
    refused = rlhf(checkout, "data", "diff", "nosuch")
    assert (refused.returncode, refused.stdout.count("\n")) == (2, 1)
    assert "Revision 'nosuch': git does not know it" in refused.stdout
