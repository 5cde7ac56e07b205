"""Programs in several processes that find each other, as torchrun starts them, on this machine's CPUs."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What torchrun, accelerate and this machine's own environment may have set for another group.
_OF_A_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_in_processes(
    program: str | Path, count: int = 2, args: Sequence[object] = (), *, folder: Path = ROOT, timeout_s: float = 240.0
) -> list[str]:
    """Run a program in `count` processes of one group, each with one thread, until all have ended.

    `accelerate launch --cpu --num_processes 2` starts a single one unless mpirun is there, so the variables are set
    here.

    Args:
        program: a file, the name of a module, or the text of a program (of more than one line).
        count: processes; 1 sets no variables, as a plain `python` does.
        args: of the command line.
        folder: working directory.
        timeout_s: until all have to be done.

    Returns:
        what each process wrote to stdout, in the order of the ranks.

    Raises:
        AssertionError: a process failed or ran out of time; holds what they wrote to stderr. None is left running.
    """
    command = [sys.executable, *_to_run(program), *map(str, args)]
    with tempfile.TemporaryDirectory() as written:
        files = [(Path(written, f"{rank}.out"), Path(written, f"{rank}.err")) for rank in range(count)]
        processes = []
        try:
            for (out, err), environment in zip(files, _environments(count), strict=True):
                with out.open("w") as stdout, err.open("w") as stderr:
                    processes.append(
                        subprocess.Popen(command, cwd=folder, env=environment, stdout=stdout, stderr=stderr)
                    )
            finished = _all_succeeded(processes, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        codes = [process.returncode for process in processes]
        assert finished, f"exit codes {codes} (-9: killed here)\n" + "\n".join(err.read_text() for _, err in files)
        return [out.read_text() for out, _ in files]


def _all_succeeded(processes: "list[subprocess.Popen[bytes]]", timeout_s: float) -> bool:
    """Whether all end well. False at the first failure: the others would wait for the failed one."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if any(codes):
            return False
        if None not in codes:
            return True
        time.sleep(0.05)
    return False


def _to_run(program: str | Path) -> list[str]:
    if isinstance(program, Path):
        return [str(program)]
    return ["-c", program] if "\n" in program else ["-m", program]


def _environments(count: int) -> list[dict[str, str]]:
    common = {name: value for name, value in os.environ.items() if name not in _OF_A_GROUP}
    path = os.pathsep.join(filter(None, [str(ROOT), common.get("PYTHONPATH", "")]))
    common |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    if count == 1:
        return [common]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**common, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
