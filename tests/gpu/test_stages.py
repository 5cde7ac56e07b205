"""Each stage on one GPU as the process that DVC starts: it ends well, it used the GPU, and it gives all memory back.

`python -m pytest -m gpu tests/gpu`, on a machine with a GPU that nothing else uses.
"""

import os
import subprocess
import sys

import pytest
import torch

from tasks.records import artifacts
from tasks.records.parameters import resolve, write_parameters
from tasks.records.trace import last_values
from tests.support.checkout import ROOT
from tests.support.workspace import make_training_workspace

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SETTINGS = {
    "sft": ["sft.model_name=data/models/sft", "sft.max_steps=2", "sft.batch_size=4", "sft.max_length=64"],
    "reward": ["reward.max_length=64", "reward.batch_size=4", "reward.num_epochs=1", "reward.reference_samples=6"],
    "ppo": ["ppo.batch_size=8", "ppo.mini_batch_size=4", "ppo.num_iterations=2", "ppo.eval_every=1"],
    "grpo": ["grpo.batch_size=8", "grpo.mini_batch_size=4", "grpo.num_generations=4", "grpo.num_iterations=1"],
    "dpo": ["dpo.batch_size=4", "dpo.max_length=64", "dpo.max_prompt_length=32"],
    "orpo": ["orpo.batch_size=4", "orpo.max_length=64", "orpo.max_prompt_length=32"],
    "evaluate": ["evaluate.samples_per_prompt=1", "evaluate.bootstrap_samples=100"],
}
TOLERANCE_BYTES = 16 << 20
"""The driver's own use varies by some MiB."""


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def used_bytes() -> int:
    """Memory of the first GPU that any process uses; asked in a process of its own, which then holds none."""
    program = "import torch; free, total = torch.cuda.mem_get_info(); print(total - free)"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("section", SETTINGS)
def test_a_stage_runs_on_the_gpu_and_gives_its_memory_back(gpu, tmp_path, section):
    make_training_workspace(tmp_path)
    algorithm = [f"algorithm={section}"] if section in artifacts.POLICY_ALGORITHMS else []
    resolution = resolve(tmp_path / "params.yaml", sets=[*SETTINGS[section], *algorithm])
    write_parameters(tmp_path / "params.yaml", resolution.changes)
    before = used_bytes()
    done = subprocess.run(
        [sys.executable, "-m", f"tasks.{section}"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    end = last_values(artifacts.read_rows(tmp_path / artifacts.TRACES[artifacts.stage_of(section)]))
    # A model of 16 dimensions takes some hundred KiB.
    assert end["memory/gpu_peak_gib"] > 1e-5
    assert abs(used_bytes() - before) < TOLERANCE_BYTES


def test_a_stage_that_is_killed_gives_its_memory_back_too(gpu, tmp_path):
    before = used_bytes()
    hog = "import time, torch; x = torch.zeros(1 << 28, device='cuda'); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", hog], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert used_bytes() - before > 1 << 30
    process.kill()
    process.wait()
    assert abs(used_bytes() - before) < TOLERANCE_BYTES
