"""Log-probabilities of all responses under the frozen reference, measured once and kept on disk."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from rlcore.checkpoint import read_tensors, swapped_in, write_tensors
from rlcore.dpo.dataset import PreferenceDataset
from rlcore.dpo.loss import response_sums
from rlcore.errors import CheckpointError, TrainingDiverged
from rlcore.forward_backward import AsyncTrainingClient, in_first_process
from rlcore.pair_training import measure_pairs

FILE = "logprobs.safetensors"

logger = logging.getLogger(__name__)


def measure_reference(
    client: AsyncTrainingClient,
    dataset: PreferenceDataset,
    steps: Iterable[Sequence[int]],
    pad_id: int,
    micro_batch_size: int,
) -> Tensor:
    """Log-probabilities of the chosen and the rejected responses under the client's reference: float32 [2, N], nats.

    Args:
        client: holds the reference, as a model of its own or as the policy without its adapters.
        dataset: N pairs.
        steps: rows that are cut into forward passes as those of an optimiser step are, each row once. Equal passes give
            equal bits: in the passes of the policy, the first margins are exactly 0.
        pad_id: fills the rows.
        micro_batch_size: pairs of one forward pass, of all processes together.

    Raises:
        TrainingDiverged: the reference gives a response no finite log-probability.
    """

    def measure(model: nn.Module, rows: list[int]) -> Tensor:
        return response_sums(model, dataset.batch(rows, pad_id).to(client.device)).view(2, -1)

    measured = measure_pairs(client, steps, measure, micro_batch_size, use_reference=True)
    faulty = (~measured.isfinite().all(dim=0)).nonzero().flatten().tolist()
    if faulty:
        raise TrainingDiverged(
            f"The reference gives {len(faulty)} pairs a log-probability that is not finite; the first is pair "
            f"{faulty[0]}. Use a reference whose weights are finite."
        )
    return measured


def kept_on_disk(
    client: AsyncTrainingClient, folder: Path, key: str, pair_count: int, measure: Callable[[], Tensor]
) -> Tensor:
    """What an earlier run with this key left in `folder`, else `measure()`, which is then left there.

    Args:
        client: knows the processes. The first one reads and writes; all measure.
        folder: of the run.
        key: names reference and pairs, in letters that a file name may have; another one is another entry.
        pair_count: N; a file of another shape is measured again.
        measure: gives float32 [2, N].
    """
    entry = folder / f"reference-{key}"
    found = in_first_process(client, partial(_read, entry, pair_count))
    if found is not None:
        return found
    measured = measure()
    in_first_process(client, partial(_write, entry, measured))
    return measured


def _read(entry: Path, pair_count: int) -> Tensor | None:
    if not (entry / FILE).is_file():
        return None
    try:
        found = read_tensors(entry / FILE)["ref_sequence_logprobs"]
    except (CheckpointError, KeyError) as error:
        logger.warning("%s cannot be read and is measured again: %s", entry, error)
        return None
    if found.shape != (2, pair_count):
        logger.warning("%s: found shape %s, expected %s; measured again.", entry, [*found.shape], [2, pair_count])
        return None
    return found


def _write(entry: Path, measured: Tensor) -> None:
    with swapped_in(entry) as draft:
        write_tensors(draft / FILE, {"ref_sequence_logprobs": measured})
