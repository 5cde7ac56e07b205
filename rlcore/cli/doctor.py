"""`rlhf doctor`: whether this machine is ready."""

import argparse
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PYTHON = ((3, 11), (3, 13))
"""From this version, to before that one."""
DISK_BYTES = 2 << 30
PORT = 5000


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    fine: bool
    advice: str = ""

    def __str__(self) -> str:
        return (
            f"{'ok  ' if self.fine else 'FAIL'}  {self.what:<12} {self.found}{'' if self.fine else f'. {self.advice}'}"
        )


def doctor(parser: argparse.ArgumentParser) -> None:
    """Check Python, packages, devices, disk and folder."""
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; 0 when all is fine, else 2."""
    findings = list(examine(Path.cwd()))
    for finding in findings:
        print(finding)
    return 0 if all(finding.fine for finding in findings) else 2


def examine(folder: Path) -> Iterator[Finding]:
    """Look at this machine and at the folder in which the pipeline would run."""
    version = sys.version_info[:2]
    yield Finding(
        "python", platform.python_version(), PYTHON[0] <= version < PYTHON[1],
        f"Use {PYTHON[0][0]}.{PYTHON[0][1]} to below {PYTHON[1][0]}.{PYTHON[1][1]}",
    )  # fmt: skip
    yield _packages()
    yield Finding("device", _device(), True)
    free = shutil.disk_usage(folder).free
    yield Finding("disk", f"{free / (1 << 30):.1f} GiB free", free >= DISK_BYTES, "The demo needs 2 GiB; free some")
    yield Finding(
        "folder", str(folder), os.access(folder, os.W_OK), "It is not writable; use another or change its owner"
    )
    yield Finding("port", f"{PORT} {'free' if _free(PORT) else 'in use, another one will be taken'}", True)


def _packages() -> Finding:
    """Compare what is installed with the pins of the distribution."""
    from packaging.requirements import Requirement

    wrong, count = [], 0
    for text in metadata.requires("rlhf-pipeline") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": "pipeline"}):
            continue
        count += 1
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} missing")
            continue
        if installed not in requirement.specifier:
            wrong.append(f"{requirement.name} {installed}, expected {requirement.specifier}")
    return Finding(
        "packages",
        "; ".join(wrong) or f"{count} as expected",
        not wrong,
        "Run `make demo`, which installs requirements.lock",
    )


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {os.cpu_count()} cores"


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
