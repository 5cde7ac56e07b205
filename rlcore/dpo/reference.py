"""Log-probabilities of all responses under the frozen reference, measured once and kept on disk."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rlcore.checkpoint import publish, read_tensors, write_tensors
from rlcore.dpo.dataset import PreferenceDataset
from rlcore.dpo.loss import response_sums
from rlcore.errors import CheckpointError, TrainingDiverged
from rlcore.forward_backward import AsyncTrainingClient

FILE = "logprobs.safetensors"

logger = logging.getLogger(__name__)


def measure_reference(
    client: AsyncTrainingClient, dataset: PreferenceDataset, batches: Iterable[list[int]], pad_id: int
) -> Tensor:
    """Log-probabilities of the chosen and the rejected responses under the client's reference: float32 [2, N], nats.

    Args:
        client: holds the reference, as a model of its own or as the policy without its adapters.
        dataset: N pairs.
        batches: rows of each forward pass, each row once. Equal batches give equal bits: in the batches of the policy,
            the first margins are exactly 0.
        pad_id: fills the rows.

    Raises:
        TrainingDiverged: the reference gives a response no finite log-probability.
    """
    measured = torch.full((2, len(dataset)), torch.nan)
    for rows in batches:
        batch = dataset.batch(rows, pad_id).to(client.device)
        sums = client.evaluate(partial(response_sums, batch=batch), use_reference=True).result()
        measured[:, rows] = sums.view(2, -1).float().cpu()
    faulty = (~measured.isfinite().all(dim=0)).nonzero().flatten().tolist()
    if faulty:
        raise TrainingDiverged(
            f"The reference gives {len(faulty)} pairs a log-probability that is not finite; the first is pair "
            f"{faulty[0]}. Use a reference whose weights are finite."
        )
    return measured


def kept_on_disk(folder: Path, key: str, pair_count: int, measure: Callable[[], Tensor]) -> Tensor:
    """What an earlier run with this key left in `folder`, else `measure()`, which is then left there.

    Args:
        folder: of the run.
        key: names reference and pairs, in letters that a file name may have; another one is another entry.
        pair_count: N; a file of another shape is measured again.
        measure: gives float32 [2, N].
    """
    entry = folder / f"reference-{key}"
    if (entry / FILE).is_file():
        try:
            found = read_tensors(entry / FILE)["ref_sequence_logprobs"]
            if found.shape == (2, pair_count):
                return found
            logger.warning("%s: found shape %s, expected %s; measured again.", entry, [*found.shape], [2, pair_count])
        except (CheckpointError, KeyError) as error:
            logger.warning("%s cannot be read and is measured again: %s", entry, error)
    measured = measure()
    with publish(entry) as draft:
        write_tensors(draft / FILE, {"ref_sequence_logprobs": measured})
    return measured
