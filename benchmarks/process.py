"""The runner's end of a worker: start it in its environment, ask it, stop it."""

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.protocol import Facts, Measurement, line, message

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".rlhf" / "benchmarks"
"""Models, logs and results that are not committed."""
PEERS = ROOT / ".rlhf" / "peers"
"""What peers.sh builds."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "WANDB_MODE": "disabled",
    "CUDA_VISIBLE_DEVICES": "",
}
"""One thread, no network, no GPU: alike for every arm."""


class ArmFailed(Exception):
    """An arm could not do what it was asked for. One line."""


def interpreter(environment: str) -> Path | None:
    """The Python of an environment: "own", or the folder of a peer; None where it is not there."""
    if environment == "own":
        return Path(sys.executable)
    python = PEERS / environment / "bin" / "python"
    return python if python.exists() and (python.parents[1] / ".installed").exists() else None


class Worker:
    """A worker process, from start to stop.

    Args:
        environment: see interpreter.
        arm: `module:Name` below benchmarks.arms.
        settings: keywords of the arm.
        timeout: seconds that one answer may take.

    Raises:
        ArmFailed: the environment is missing.
    """

    def __init__(self, environment: str, arm: str, settings: Mapping[str, Any], timeout: float = 1800):
        python = interpreter(environment)
        if python is None:
            raise ArmFailed(f"{environment}: not installed. Run benchmarks/peers.sh.")
        self.arm, self.settings, self._timeout = arm, dict(settings), timeout
        self.log = HOME / "logs" / f"{environment}-{arm.replace(':', '.')}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.worker"],
                cwd=ROOT,
                env={**os.environ, **QUIET},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def build(self) -> dict[str, float]:
        """Import and build; returns the CPU seconds of both."""
        return self._ask(do="build", arm=self.arm, settings=self.settings)

    def facts(self, other: Facts | None = None) -> Facts:
        """See Arm.facts."""
        facts: Facts = self._ask(do="facts", other=other)["facts"]
        return facts

    def unit(self) -> Measurement:
        """One unit, measured by the worker."""
        return Measurement.from_values(self._ask(do="unit"))

    def stop(self) -> None:
        """End the process. Idempotent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line(asked))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("its process ended") from None
        ready, _, _ = select.select([self._process.stdout], [], [], self._timeout)
        text = self._process.stdout.readline() if ready else b""
        if not text:
            self._process.kill()
            raise self._failed("its process ended" if ready else f"no answer within {self._timeout:.0f} s")
        answered = message(text)
        if not answered.pop("ok"):
            raise self._failed(answered["error"])
        return answered

    def _failed(self, why: str) -> ArmFailed:
        return ArmFailed(f"{self.arm}: {why}. See {self.log.relative_to(ROOT)}.")
