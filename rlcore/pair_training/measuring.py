"""Measuring preference pairs without training on them, shared out over the processes."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from rlcore.forward_backward import AsyncTrainingClient, in_each_process
from rlcore.pair_training.objective import PairObjective, SizedPairs
from rlcore.processes import sums


def by_length(pairs: SizedPairs, rows: Sequence[int] | None = None) -> list[int]:
    """The rows, by default all of them, from the shortest to the longest pair, which saves padding."""
    return sorted(range(len(pairs)) if rows is None else rows, key=pairs.length)


def evaluate_pairs(client: AsyncTrainingClient, pairs: PairObjective, micro_batch_size: int) -> dict[str, float]:
    """The metrics of `pairs.summary` over all pairs, for the model as the client holds it, in evaluation mode.

    Args:
        client: holds the model.
        pairs: what to measure; all processes pass the same.
        micro_batch_size: pairs of one forward pass, of all processes together.

    Returns:
        `validation/<what>` for each `<topic>/<what>` of the summary.

    Raises:
        DeviceMemoryError: a device has no room for a single pair.
    """
    rows = client.processes.share(by_length(pairs))
    part_size = math.ceil(micro_batch_size / client.processes.count)

    def own_sums() -> dict[str, float]:
        return sums(client.evaluate_in_parts(rows, partial(_sums, pairs), part_size=part_size))

    totals = sums(in_each_process(client, own_sums))
    return {f"validation/{name.split('/')[1]}": value for name, value in pairs.summary(totals, len(pairs)).items()}


def measure_pairs(
    client: AsyncTrainingClient,
    steps: Iterable[Sequence[int]],
    measure: Callable[[nn.Module, list[int]], Tensor],
    micro_batch_size: int,
    *,
    use_reference: bool = False,
) -> Tensor:
    """Two numbers of each pair, float32 [2, N] on the CPU and the same in all processes.

    Args:
        client: holds the model.
        steps: rows that are cut into forward passes as those of an optimiser step are. Equal passes give equal bits.
            Each of the rows 0 to N - 1 is in one of them and in no other.
        measure: gives [2, n] for n rows.
        micro_batch_size: pairs of one forward pass, of all processes together.
        use_reference: measure the client's reference.

    Raises:
        DeviceMemoryError: a device has no room for a single pair.
    """
    part_size = math.ceil(micro_batch_size / client.processes.count)
    shares = [client.processes.share(rows) for rows in steps]

    def own_columns() -> tuple[list[int], Tensor]:
        columns = [torch.zeros(2, 0)]
        for rows in shares:
            parts = client.evaluate_in_parts(rows, measure, part_size=part_size, use_reference=use_reference)
            columns += [part.float().cpu() for part in parts]
        return list(chain(*shares)), torch.cat(columns, dim=1)

    everything = in_each_process(client, own_columns)
    measured = torch.empty(2, sum(len(rows) for rows, _ in everything))
    for rows, values in everything:
        measured[:, rows] = values
    return measured


def _sums(pairs: PairObjective, model: nn.Module, rows: list[int]) -> dict[str, float]:
    scalars = pairs.sums(model, rows)
    # one transfer from the device instead of one for each number
    return dict(zip(scalars, torch.stack(list(scalars.values())).tolist(), strict=True))
