"""Programs that are killed in the middle of something, as `kill -9` or a lost machine does it.

The program calls `pause_where_told()` first. The test starts it with `kill_in(...)`, which tells it by an environment
variable where to stop and wait for its end; started otherwise it runs through. The library knows nothing of this.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from rlcore.checkpoint import steps

ROOT = Path(__file__).resolve().parents[2]
PLACE = "TEST_PAUSE_IN"
_PAUSED = "paused"


def kill_in(place: str, module: str, *args: object, timeout_s: float = 240.0) -> None:
    """Run `python -m module args` until it pauses in the place, and kill it there.

    Args:
        place: "update 7": in the seventh optimiser step of that process, gradients there, weights not yet moved.
            "save 8": in the middle of writing checkpoint `step-8`, one file whole and one half.
        module: calls `pause_where_told()`.
        args: of the command line.
        timeout_s: until it has to be there.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads()), PLACE: place}
    command = [sys.executable, "-m", module, *map(str, args)]
    with tempfile.TemporaryFile("w+") as written:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=written, stderr=subprocess.STDOUT)
        try:
            found = _waited_for_pause(process, written, timeout_s)
        finally:
            process.kill()
            process.wait()
        written.seek(0)
        assert found, f"{module} ended with {process.returncode} and never paused in {place}:\n{written.read()}"
    assert process.returncode == -signal.SIGKILL


def pause_where_told() -> None:
    """For the program: stop where `kill_in` said."""
    kind, _, number = os.environ.get(PLACE, "").partition(" ")
    if kind == "update":
        _pause_in_update(int(number))
    elif kind == "save":
        _pause_in_save(f".step-{number}.tmp")


def _waited_for_pause(process: "subprocess.Popen[bytes]", written: Any, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        written.seek(0)
        if _PAUSED in written.read().splitlines():
            return True
        time.sleep(0.02)
    return False


def _pause_in_update(count: int) -> None:
    step, calls = torch.optim.AdamW.step, []

    def stop(optimizer: torch.optim.AdamW, *args: Any) -> Any:
        calls.append(1)
        return _pause() if len(calls) == count else step(optimizer, *args)

    torch.optim.AdamW.step = stop  # type: ignore[method-assign]


def _pause_in_save(folder: str) -> None:
    write = steps.write_tensors

    def stop(path: Path, tensors: dict[str, Tensor], *args: Any) -> dict[str, str]:
        earlier = path.parent.name == folder and any(path.parent.iterdir())
        aliases = write(path, tensors, *args)
        if earlier:
            os.truncate(path, path.stat().st_size // 2)
            _pause()
        return aliases

    steps.write_tensors = stop


def _pause() -> NoReturn:
    sys.stdout.write(f"{_PAUSED}\n")
    sys.stdout.flush()
    time.sleep(600)
    raise AssertionError("paused and was not killed")
