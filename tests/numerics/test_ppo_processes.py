"""Two processes that share the responses take the steps of one."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.models import load_causal_lm, save_causal_lm
from rlcore.scratch import build_model
from tests.support.launch import run_in_processes
from tests.support.ppo import SHAPE
from tests.support.ppo_program import run, trace_of
from tests.support.tiny import tiny_tokenizer

CASES: dict[str, dict[str, Any]] = {
    # 7 responses: 4 and 3 of them; steps of 4 rows in 2 micro-batches and of 3; 3 validation prompts
    "ragged": {"batch_size": 7, "mini_batch_size": 2, "gradient_accumulation_steps": 2, "num_iterations": 3},
    # 3 prompts with 2 responses each: each process compares the rivals of whole prompts, 2 and 1 of them
    "rivals": {"reward": "rivals", "batch_size": 6, "mini_batch_size": 2, "num_iterations": 2},
    # the first process has a row in every step and evaluation, the second one in none
    "idle": {"batch_size": 2, "mini_batch_size": 1, "eval_prompts": 1, "num_iterations": 2, "lora": {"rank": 2}},
}
PROGRAM = f"""
import json, os, sys
from pathlib import Path
import datasets
from rlcore.errors import RLCoreError
from rlcore.ppo import train
from tests.support.ppo import PROMPTS, mean_letter, tiny_config, tiny_trainer
from tests.support.ppo_program import run

folder = Path(sys.argv[1])
for name, settings in json.loads({json.dumps(CASES)!r}).items():
    print(json.dumps(run(folder / name, **settings)))


def fails_in_the_second(prompts, responses, metadata=None):
    return [None if os.environ["RANK"] == "1" else 1.0] * len(responses)


trainer = tiny_trainer(tiny_config(), reward_fn=fails_in_the_second)
try:
    trainer.train(PROMPTS)
except RLCoreError as error:
    print(json.dumps([type(error).__name__, str(error)]))
trainer.close()

# the common interface, without a folder for checkpoints
rows = datasets.Dataset.from_dict({{"prompt": PROMPTS}})
config = tiny_config(model_name=str(folder / "start"), num_iterations=1)
result = train(config, datasets.DatasetDict(train=rows, validation=rows), folder / "policy", reward=mean_letter)
print(json.dumps([result.best_step, result.best_metrics]))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, dict[str, list[Any]]]:
    """The folder of two processes, and by case what the first and the second one returned."""
    folder = tmp_path_factory.mktemp("two")
    save_causal_lm(build_model(SHAPE, tiny_tokenizer(), seed=1), tiny_tokenizer(), folder / "start")
    said = [[json.loads(line) for line in text.splitlines()] for text in run_in_processes(PROGRAM, 2, [folder])]
    return folder, dict(zip([*CASES, "faulty", "published"], map(list, zip(*said, strict=True)), strict=True))


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(tmp_path: Path, two, case: str):
    alone = run(tmp_path, **CASES[case])
    folder, (first, second) = two[0] / case, two[1][case]
    # each iteration was reported once, with the numbers of one process
    expected, found = trace_of(tmp_path), trace_of(folder)
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-5, abs=1e-5), step
    lines = [len((each / "trace.jsonl").read_text().splitlines()) for each in (tmp_path, folder)]
    assert lines[0] == lines[1]
    # history and weights are the same in both, to the last bit; process 0 alone hands out samples, of all prompts
    assert first["history"] == second["history"]
    assert first["weights"] == second["weights"]
    for name, values in alone["history"].items():
        assert first["history"][name] == pytest.approx(values, rel=1e-5, abs=1e-5), name
    assert second["samples"] == []
    texts = [[[step, [row["response"] for row in rows]] for step, rows in each["samples"]] for each in (alone, first)]
    assert texts[0] == texts[1]
    assert files_of(tmp_path) == files_of(folder)


@pytest.mark.slow
def test_an_error_in_one_process_ends_both(two):
    first, second = two[1]["faulty"]
    assert first == second
    assert first[0] == "DataError"
    assert first[1].startswith("fails_in_the_second, response 0, returned None")


@pytest.mark.slow
def test_two_processes_publish_one_model_and_leave_nothing_beside_it(two):
    folder, said = two
    first, second = said["published"]
    assert first == second
    assert first[0] in {0, 1}
    assert load_causal_lm(folder / "policy").num_parameters() == load_causal_lm(folder / "start").num_parameters()
    assert {path.name for path in folder.iterdir()} == {*CASES, "start", "policy"}
