"""How a process ends, as a number: what whoever started it should do next."""

import errno

from rlcore.errors import DeviceMemoryError, RLCoreError, TrainingDiverged

DONE, FAILED, CONFIGURATION, TRANSIENT = 0, 1, 2, 75
"""As asked; a fault of ours or a training that diverged; a setting or data; something that may pass."""

INTERRUPTED, CANCELLED = 130, 143
"""Ended by SIGINT; ended by SIGTERM."""

_TRANSIENT_ERRNO = {
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ESTALE,
    errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH,
}  # fmt: skip


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error: its own attribute `exit_code`, else by its kind.

    What this project raises on purpose and what the machine refuses has its cause in a setting or in data, where
    nothing else is known.
    """
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # PyTorch's own error, which is not imported here, has this name.
    if isinstance(error, MemoryError | DeviceMemoryError) or type(error).__name__ == "OutOfMemoryError":
        return TRANSIENT
    if isinstance(error, OSError):
        passes = isinstance(error, ConnectionError | TimeoutError) or error.errno in _TRANSIENT_ERRNO
        return TRANSIENT if passes else CONFIGURATION
    if isinstance(error, RLCoreError) and not isinstance(error, TrainingDiverged):
        return CONFIGURATION
    return FAILED
