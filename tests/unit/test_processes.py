"""What processes exchange: shares, values, sums, gradients, and work that the first does for all."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from rlcore import processes
from rlcore.errors import ConfigError
from rlcore.processes import DataParallel, SingleProcess, launched_processes, sums
from tests.support.launch import ROOT, run_in_processes

EXCHANGE = """
import json, torch
from rlcore.errors import DataError
from rlcore.processes import launched_processes
processes = launched_processes()
rank = processes.rank
told = {"same": launched_processes() is processes, "count": processes.count, "is_first": processes.is_first}
told["shares"] = [processes.share(range(5)), processes.share([7])]
told["gathered"] = [value["tensor"].tolist() for value in processes.gather({"tensor": torch.tensor([rank, 2.5])})]

model = torch.nn.BatchNorm1d(2, dtype=torch.float64)
model.weight.data.fill_(rank + 1.0)
model.register_buffer("flag", torch.tensor([rank == 0]))
processes.copy_from_first(model)
told["weights"] = [model.weight.tolist(), model.flag.tolist()]
extra = torch.nn.Parameter(torch.zeros(2, 2))
if rank == 0:
    model.weight.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
extra.grad = (torch.arange(8.0) + rank).view(2, 4)[:, ::2]  # every other number: not in one piece
processes.sum_gradients([*model.parameters(), extra])
told["gradients"] = [model.weight.grad.tolist(), model.bias.grad, extra.grad.tolist()]

def fail(error):
    raise error

told["first"] = processes.on_first(lambda: f"by {rank}")
for error in (DataError("row 7"), KeyError("x")):
    try:
        processes.on_first(lambda: fail(error))
    except Exception as raised:
        told.setdefault("errors", []).append(repr(raised))
print(json.dumps(told))
"""


def test_two_processes_exchange_values_gradients_and_errors():
    first, second = map(json.loads, run_in_processes(EXCHANGE))
    assert (first["is_first"], second["is_first"]) == (True, False)
    assert (first["shares"], second["shares"]) == ([[0, 2, 4], [7]], [[1, 3], []])
    assert first["errors"] == ["DataError('row 7')", "KeyError('x')"]
    # an error of another library reaches the others in words
    assert second["errors"] == ["DataError('row 7')", "RLCoreError(\"KeyError: 'x'\")"]
    for told in (first, second):
        assert told["same"] is True
        assert told["count"] == 2
        assert told["gathered"] == [[0, 2.5], [1, 2.5]]
        assert told["weights"] == [[1.0, 1.0], [True]]
        # a gradient that one process lacks counts as 0 there; one that all lack stays away
        assert told["gradients"] == [[1.0, 2.0], None, [[1.0, 5.0], [9.0, 13.0]]]
        assert told["first"] == "by 0"


def test_one_process_has_everything_and_loads_no_accelerate():
    program = (
        "import sys\nfrom rlcore.processes import launched_processes\np = launched_processes()\n"
        "print(p.share([1, 2]), p.gather(3), p.on_first(lambda: 4), p.count, p.rank,"
        " p.is_first, 'accelerate' in sys.modules)"
    )
    (told,) = run_in_processes(program, count=1)
    assert told.split("\n")[0] == "[1, 2] [3] 4 1 0 True False"


def test_sums_add_up_in_order_and_a_missing_name_is_zero():
    assert sums([]) == {}
    assert sums([{"a": 0.1}, {"b": 3.0}, {"a": 0.2}]) == {"a": 0.1 + 0.2, "b": 3.0}


def test_torchrun_starts_processes_that_find_each_other(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from rlcore.processes import launched_processes\n"
        "processes = launched_processes()\n"
        "assert processes.gather(processes.rank + 1.0) == [1.0, 2.0]\n"
        "assert str(processes.device).startswith('cpu')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240, capture_output=True, env={"PYTHONPATH": str(ROOT)})


def group_of(count: int) -> SimpleNamespace:
    """What accelerate makes of a launch."""
    return SimpleNamespace(num_processes=count, process_index=0, device=torch.device("cpu"))


def test_processes_that_do_not_find_each_other_are_refused(monkeypatch):
    # GPUs without a local rank
    monkeypatch.setattr("accelerate.PartialState", lambda cpu: group_of(1))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="Found 2 launched processes, of which 1 found each other"):
        DataParallel()


def test_mixed_precision_of_the_launch_is_refused(monkeypatch):
    monkeypatch.setattr("accelerate.PartialState", lambda cpu: group_of(2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ConfigError, match="Found mixed_precision='bf16' in the launch settings, expected 'no'"):
        DataParallel()


def test_a_launcher_that_starts_one_process_for_several_is_noticed(monkeypatch, caplog):
    # what `accelerate launch --cpu --num_processes 2` sets where there is no mpirun
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    processes._warn_of_a_lone_process.cache_clear()
    assert isinstance(launched_processes(), SingleProcess)
    assert isinstance(launched_processes(), SingleProcess)
    assert caplog.text.count("started one process whatever --num_processes says") == 1


def test_a_failure_in_one_process_ends_the_others_at_once():
    program = "import os, time\nassert os.environ['RANK'] == '0', 'planted'\ntime.sleep(600)\n"
    with pytest.raises(AssertionError, match=r"exit codes \[-9, 1\](?s:.*)planted"):
        run_in_processes(program)
