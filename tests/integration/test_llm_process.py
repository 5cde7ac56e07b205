"""`rlhf llm --train` as a process of its own that gets a signal."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support import stand_ins
from tests.support.checkout import ROOT
from tests.support.llm import PAIRS, write_rows


def test_a_process_that_is_asked_to_end_saves_its_state_and_says_how_to_go_on(tmp_path: Path):
    stand_ins.gemma3(tmp_path / "model")
    write_rows(tmp_path / "data/train.jsonl", [{"prompt": row["prompt"]} for row in PAIRS])
    flags = "--trainer ppo --model model --model-ref model --rl-reward-fn default --rl-chunk-size 8 --epochs 100"
    kept = "--rl-max-new-tokens 6 --save-strategy steps --save-steps 10000"
    process = subprocess.Popen(
        [sys.executable, "-m", "rlcore.cli.main", "llm", "--train", *flags.split(), *kept.split()],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ppo 3/"):
            process.send_signal(signal.SIGTERM)
            break
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    warning, *lines = said.splitlines()
    assert warning.startswith("WARNING: --rl-top-k=50 and --rl-top-p=1 draw from a part of the distribution")
    assert [line for line in lines if not line.startswith("WARNING: ")] == [
        "Stopping after this step, whose state is saved. Once more stops at once.",
        "Stopped. The same command with --resume-from-checkpoint auto goes on from here.",
    ]
    (checkpoint,) = (tmp_path / "project-name-checkpoints").glob("step-*")
    assert int(checkpoint.name.removeprefix("step-")) >= 3
    assert not (tmp_path / "project-name").exists()
