"""Ours with the peer's division of labour: a critic with a trunk of its own, read once after sampling."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlcore import PPOTrainer, ValueHead
from rlcore.batches import Sequences
from rlcore.models import CausalLM, PPOModel, ResponseOutputs, TrunkAndHead
from rlcore.rollout import EncodedPrompt, Rollout


class SeparateCriticModel(PPOModel):
    """A policy, and beside it a whole decoder with a value head."""

    def __init__(self, base_model: CausalLM):
        super().__init__(base_model)
        self.critic = copy.deepcopy(base_model)
        self.critic_head = ValueHead(self.hidden_size)

    def response_outputs_with_detached_entropy(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """As of the policy, with the values of the critic's own states."""
        outputs = super().response_outputs_with_detached_entropy(sequences, temperature)
        values = self.critic_values(sequences)[:, :-1].where(sequences.response_mask, 0.0)
        return replace(outputs, values=values)

    def bootstrap_values(self, sequences: Sequences) -> Tensor:
        """Nothing yet: they come with all others in one pass, see SeparateCriticTrainer.collect."""
        return torch.zeros(len(sequences))

    def critic_values(self, sequences: Sequences) -> Tensor:
        """Values [B, 1 + T] before each response token and after the last one."""
        hidden = TrunkAndHead(self.critic).hidden(sequences.input_ids, sequences.attention_mask)
        values: Tensor = self.critic_head(hidden[:, sequences.prompt_length - 1 :])
        return values


class SeparateCriticTrainer(PPOTrainer):
    """PPOTrainer on a SeparateCriticModel."""

    def trained_module(self, base_model: CausalLM) -> nn.Module:
        """Policy and critic."""
        return SeparateCriticModel(base_model)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Those of the policy, and the whole critic."""
        policy = super().parameter_groups()[0]
        critic = [*self.model.critic.get_decoder().parameters(), *self.model.critic_head.parameters()]
        return [policy, {"params": critic, "lr": self.config.learning_rate, "weight_decay": 0.0}]

    def collect(self, prompts: Sequence[EncodedPrompt], indices: Sequence[int], purpose: tuple[str, int]) -> Rollout:
        """As of PPOTrainer, with the critic's values."""
        rollout = super().collect(prompts, indices, purpose)
        values = self.training_client.evaluate(lambda model: model.critic_values(rollout.sequences)).result()
        rows = torch.arange(len(rollout))
        return replace(
            rollout,
            old_values=values[:, :-1].where(rollout.response_mask, 0.0),
            bootstrap_values=values[rows, rollout.sequences.response_lengths].where(rollout.truncated, 0.0),
        )
