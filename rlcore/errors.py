"""The errors that rlcore raises on purpose.

Each message says what was found, what was expected and what to do now. All can be pickled, to cross process borders.
"""


class RLCoreError(Exception):
    """Root of every error that rlcore raises on purpose."""


class ConfigError(RLCoreError, ValueError):
    """A setting is missing, unknown, out of range, or contradicts another one."""


class DataError(RLCoreError, ValueError):
    """A row, a column or a reward has the wrong form."""


class CheckpointError(RLCoreError):
    """A checkpoint is missing, incomplete, damaged, or belongs to another run."""


class TrainingDiverged(RLCoreError, RuntimeError):
    """Loss or gradients stayed non-finite for too many steps in a row. The last good checkpoint is untouched."""


class DeviceMemoryError(RLCoreError, RuntimeError):
    """The device has too little memory even for one row at a time. Another try may find more of it free."""
