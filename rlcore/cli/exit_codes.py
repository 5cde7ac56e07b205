"""What a command's exit code says about an error."""

import errno

from rlcore.errors import DeviceMemoryError, RLCoreError, TrainingDiverged

DONE, FAILED, USAGE_ERROR, TRANSIENT, INTERRUPTED = 0, 1, 2, 75, 130
"""As asked; training diverged or a fault of ours; a setting or data; something that may pass; Ctrl-C."""

_TRANSIENT_ERRNO = {
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ESTALE,
    errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH,
}  # fmt: skip


def exit_code_of(error: RLCoreError | OSError | MemoryError) -> int:
    """The exit code of an error: the one that it brings along, else by its kind.

    Where nothing else is known a setting or data are the cause.
    """
    if isinstance(error, OSError):
        passes = isinstance(error, ConnectionError | TimeoutError) or error.errno in _TRANSIENT_ERRNO
        return TRANSIENT if passes else USAGE_ERROR
    if isinstance(error, MemoryError | DeviceMemoryError):
        return TRANSIENT
    if isinstance(error, TrainingDiverged):
        return FAILED
    return int(getattr(error, "exit_code", USAGE_ERROR))
