"""What an exit code says to whoever started a process: a stage, a command, a scheduler."""

import errno

import pytest

from rlcore.cli.stopping import Stopped
from rlcore.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceMemoryError,
    RLCoreError,
    TrainingDiverged,
)
from rlcore.exit_codes import exit_code_of
from tasks.records.stage import Cancelled
from tasks.service.servers import ServerFailed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (DataError("x"), 2),
        (CheckpointError("x"), 2),
        (FileNotFoundError(errno.ENOENT, "no", "model"), 2),
        (PermissionError(errno.EACCES, "no", "data"), 2),
        (OSError("x is no model folder"), 2),
        (OSError(errno.ENOSPC, "full"), 75),
        (OSError(errno.EIO, "io"), 75),
        (ConnectionResetError(errno.ECONNRESET, "gone"), 75),
        (TimeoutError(), 75),
        (MemoryError(), 75),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), 75),
        (Cancelled("SIGTERM"), 143),
        (Stopped(2), 130),
        (Stopped(15), 143),
        (ServerFailed("x"), 75),
        (DeviceMemoryError("x"), 75),
        (RLCoreError("x"), 2),
        (KeyboardInterrupt(), 130),
        (TrainingDiverged("x"), 1),
        (KeyError("bug"), 1),
    ],
)
def test_the_exit_code_says_what_to_do(error, code):
    assert exit_code_of(error) == code
