"""The preference loss of a batch of pairs, and the log-probabilities behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlcore.configs import DPOConfig
from rlcore.dpo.dataset import PairBatch, PreferenceDataset
from rlcore.functional.logprobs import response_logprobs
from rlcore.functional.losses import dpo_pair_losses, implicit_rewards, preference_accuracy
from rlcore.models import TrunkAndHead


@dataclass(frozen=True, eq=False)
class ReferencedPairs:
    """Preference pairs with what the reference says about them, and the DPO loss on them.

    Args:
        dataset: N pairs.
        ref_sequence_logprobs: float32 [2, N], nats of the whole response, chosen and rejected; 0 without a reference.
        pad_id: fills the rows of a batch.
        config: beta and label_smoothing.
    """

    dataset: PreferenceDataset
    ref_sequence_logprobs: Tensor
    pad_id: int
    config: DPOConfig

    def __len__(self) -> int:
        return len(self.dataset)

    def length(self, row: int) -> int:
        """Tokens of the longer one of the two sequences of a pair."""
        return self.dataset.length(row)

    def loss(
        self, model: nn.Module, rows: Sequence[int], *, pair_count: int, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See pair_loss. Without dropout the step does not matter."""
        device = next(model.parameters()).device
        batch = self.dataset.batch(rows, self.pad_id).to(device)
        ref_sequence_logprobs = self.ref_sequence_logprobs[:, list(rows)].flatten().to(device)
        return pair_loss(model, batch, ref_sequence_logprobs, pair_count, self.config)

    def sums(self, model: nn.Module, rows: Sequence[int]) -> dict[str, Tensor]:
        """The sums of pair_loss."""
        return self.loss(model, rows, pair_count=1, step=0)[1]

    def summary(self, sums: Mapping[str, float], pair_count: int) -> dict[str, float]:
        """Means over the pairs."""
        return {name: value / pair_count for name, value in sums.items()}


def response_sums(model: nn.Module, batch: PairBatch) -> Tensor:
    """Log-probability of each response, [2N], in nats. Prompts and padding do not count.

    The output layer sees the states in front of response tokens only.

    Args:
        model: causal language model, with or without adapters.
        batch: pairs on the model's device.
    """
    parts = TrunkAndHead(model)  # type: ignore[arg-type]  # the training client hands over a plain module
    hidden = parts.hidden(batch.input_ids)
    rows, width = batch.input_ids.shape
    steps = torch.arange(batch.response_ids.shape[1] + 1, device=hidden.device)
    positions = (batch.prompt_lengths[:, None] - 1 + steps).clamp(max=width - 1)
    positions = positions + width * torch.arange(rows, device=hidden.device)[:, None]
    states = hidden.flatten(0, 1).index_select(0, positions.flatten()).view(rows, len(steps), -1)
    logprobs = response_logprobs(states, parts.logits, batch.response_ids, temperature=1.0)
    return logprobs.where(batch.response_mask, 0.0).sum(dim=-1)


def pair_loss(
    model: nn.Module, batch: PairBatch, ref_sequence_logprobs: Tensor, pair_count: int, config: DPOConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """DPO loss of n pairs (Rafailov et al. 2023, eq. 7), divided by the pairs of the whole optimiser step.

    Args:
        model: the policy.
        batch: n pairs.
        ref_sequence_logprobs: [2n], nats, chosen first.
        pair_count: pairs of the optimiser step, so that the losses of its micro-batches add up.
        config: beta and label_smoothing.

    Returns:
        the loss, and sums over the n pairs of what is reported as means; `dpo/accuracy` counts strict wins. Two equal
        responses have equal rewards, whatever rounding says of their rows: no win and no gradient.
    """
    chosen, rejected = response_sums(model, batch).chunk(2)
    ref_chosen, ref_rejected = ref_sequence_logprobs.chunk(2)
    chosen_rewards = implicit_rewards(chosen, ref_chosen, beta=config.beta)
    rejected_rewards = implicit_rewards(rejected, ref_rejected, beta=config.beta)
    rejected_rewards = chosen_rewards.where(batch.ties(), rejected_rewards)
    losses = dpo_pair_losses(chosen_rewards, rejected_rewards, label_smoothing=config.label_smoothing)
    loss = losses.sum()
    with torch.no_grad():
        sums = {
            "dpo/loss": loss.detach(),
            "dpo/accuracy": preference_accuracy(chosen_rewards, rejected_rewards, pair_count=1),
            "dpo/margin_mean": (chosen_rewards - rejected_rewards).sum(),
            "dpo/chosen_reward_mean": chosen_rewards.sum(),
            "dpo/rejected_reward_mean": rejected_rewards.sum(),
        }
    return loss / pair_count, sums
