"""Processes of one run that were told different things, or of which one has gone: all of them say so and end."""

import json

import pytest

from tests.support.launch import run_in_processes

pytestmark = pytest.mark.long

PROGRAM = """
import json, sys
from rlcore.forward_backward import AsyncTrainingClient, require_agreement
from rlcore.processes import launched_processes
from tests.support import dpo
from tests.support.lane_models import OneNumber
from tests.support.ppo import PROMPTS, mean_letter, tiny_config, tiny_trainer

rank = launched_processes().rank
client = AsyncTrainingClient(OneNumber())


def ppo(prompts=PROMPTS, total=1, folder=None, **settings):
    config = tiny_config(batch_size=8, mini_batch_size=4, **settings)
    tiny_trainer(config, reward_fn=mean_letter).train(prompts, total, resume_dir=folder)


CASES = {
    "helper": lambda: require_agreement(client, {"same": [1], "other": rank}),
    "config": lambda: ppo(learning_rate=1e-3 if rank else 1e-2),
    "order": lambda: ppo(PROMPTS[::-1] if rank else PROMPTS),
    "total": lambda: ppo(total=1 + rank),
    "folder": lambda: ppo(folder=f"{sys.argv[1]}/{rank}"),
    "pairs": lambda: dpo.new_trainer(dpo.config()).train(dpo.pairs(20 - 4 * rank)),
    "rate": lambda: dpo.new_trainer(dpo.config(learning_rate=1e-3 if rank else 1e-2)).train(dpo.pairs(8)),
}
told = {}
for name, case in CASES.items():
    try:
        case()
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
if rank == 0:
    try:
        client.across_processes(lambda processes: processes.gather(rank)).result()
    except Exception as error:
        told["gone"] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""

DIFFER = {
    "helper": "other",
    "config": "config",
    "order": "prompts",
    "total": "num_iterations",
    "folder": "resume_dir",
    "pairs": "pairs",
    "rate": "config",
}


def test_processes_that_were_told_different_things_all_refuse_and_a_lost_one_is_missed(tmp_path):
    first, second = map(json.loads, run_in_processes(PROGRAM, args=[tmp_path]))
    lost = first.pop("gone")
    assert lost.startswith("RLCoreError: Lost touch with another process of this run")
    for told in (first, second):
        for case, fact in DIFFER.items():
            assert told[case].startswith(
                f"ConfigError: Found processes of one run that differ in {fact}, expected the same"
            )
