"""What to do when the device has no memory left: the same work on fewer rows at once."""

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from rlcore.errors import DeviceMemoryError

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")

# Besides torch's own error: what a GPU's matrix library and the CPU's allocator say.
_OUT_OF_MEMORY = ("CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device has too little memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class RowLimit:
    """How many rows the device takes at once, as far as that is known.

    Args:
        work: what is done with the rows, for messages.
        level: of the log's line about each halving.
    """

    def __init__(self, work: str, level: int = logging.WARNING):
        self.work, self._level = work, level
        self._rows: int | None = None

    def at_most(self, rows: int) -> int:
        """That many rows, or fewer where they were too many before."""
        return rows if self._rows is None else min(rows, self._rows)

    def halve(self, rows: int) -> int:
        """Half of so many rows, from now on the limit. Call it when the failed work is no longer referred to.

        Raises:
            DeviceMemoryError: it was one row.
        """
        if rows == 1:
            raise DeviceMemoryError(
                f"The device ran out of memory in {self.work} of a single row. Lower the maximum lengths "
                "(max_length, max_prompt_length, max_new_tokens), take a smaller model or LoRA adapters, or free the "
                "device of other processes."
            )
        self._rows = rows // 2
        message = "The device ran out of memory in %s of %d rows. Going on with %d."
        logger.log(self._level, message, self.work, rows, self._rows)
        gc.collect()  # what an error's traceback held
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # blocks of the old sizes
        return self._rows


def measure_in_parts(
    model: nn.Module,
    rows: Sequence[RowT],
    measure: Callable[[nn.Module, list[RowT]], ResultT],
    part_size: int,
    limit: RowLimit,
) -> list[ResultT]:
    """measure(model, part) for consecutive parts of the rows; a part for which memory is too small is halved.

    Raises:
        DeviceMemoryError: there is too little memory for one row.
    """
    results: list[ResultT] = []
    start = 0
    while start < len(rows):
        part = list(rows[start : start + limit.at_most(part_size)])
        try:
            results.append(measure(model, part))
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
        else:
            start += len(part)
            continue
        limit.halve(len(part))
    return results
