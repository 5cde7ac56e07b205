"""Checkpoints of a trainer and finished model folders: whole or absent, never half, and no pickle.

A checkpoint is a folder `step-<step>` with one `<name>.safetensors` for each group of tensors, `state.json` and
`manifest.json` (size and sha256 of every file, and its own). It is written beside its place, flushed to disk and
renamed. Only one process may write into a folder of checkpoints.
"""

from rlcore.checkpoint.folders import publish, require_replaceable, swapped_in, sync, told_as_os_error
from rlcore.checkpoint.steps import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint, write_checkpoint
from rlcore.checkpoint.tensors import read_tensors, write_tensors

__all__ = [
    "Checkpoint",
    "latest_checkpoint",
    "load_checkpoint",
    "publish",
    "read_tensors",
    "require_replaceable",
    "save_checkpoint",
    "swapped_in",
    "sync",
    "told_as_os_error",
    "write_checkpoint",
    "write_tensors",
]
