"""Measuring preference pairs without training on them, shared out over the processes."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rlcore.forward_backward import AsyncTrainingClient
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
    """
    rows = client.processes.share(by_length(pairs))
    parts = client.evaluate_in_parts(
        rows, partial(_sums, pairs), part_size=math.ceil(micro_batch_size / client.processes.count)
    )
    totals = client.across_processes(lambda processes: processes.sum(sums(parts))).result()
    return pairs.summary(totals, len(pairs))


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
            Each of the rows 0 to N - 1 is in one of them.
        measure: gives [2, n] for n rows.
        micro_batch_size: pairs of one forward pass, of all processes together.
        use_reference: measure the client's reference.
    """
    part_size = math.ceil(micro_batch_size / client.processes.count)
    own_rows: list[int] = []
    columns: list[Tensor] = []
    for rows in steps:
        share = client.processes.share(rows)
        own_rows += share
        parts = client.evaluate_in_parts(share, measure, part_size=part_size, use_reference=use_reference)
        columns += [part.float().cpu() for part in parts]
    own = (own_rows, torch.cat(columns, dim=1) if columns else torch.zeros(2, 0))
    everything = client.across_processes(lambda processes: processes.gather(own)).result()
    measured = torch.empty(2, sum(len(rows) for rows, _ in everything))
    for rows, values in everything:
        measured[:, rows] = values
    return measured


def _sums(pairs: PairObjective, model: nn.Module, rows: list[int]) -> dict[str, float]:
    scalars = pairs.sums(model, rows)
    # one transfer from the device instead of one for each number
    return dict(zip(scalars, torch.stack(list(scalars.values())).tolist(), strict=True))
