"""Policy and critic: what they say about the tokens of responses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from rlcore.batches import Sequences
from rlcore.functional.logprobs import (
    response_logprobs,
    response_logprobs_and_detached_entropy,
    response_logprobs_and_entropy,
)
from rlcore.models.causal_lm import CausalLM, TrunkAndHead, require_separable

Measure = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class ResponseOutputs:
    """What a policy with a critic says about responses. All [B, T], float32, 0 on padding."""

    logprobs: Tensor
    """Nats of response token t at the temperature."""
    entropy: Tensor
    """Nats, of the unfiltered distribution of token t."""
    values: Tensor
    """Critic before token t, reward units."""


class ValueHead(nn.Module):
    """Critic on hidden states: Linear to twice the width, ReLU, Linear to one value.

    The last layer starts at 0, so that the first advantages come from rewards and not from random weights.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2 * hidden_size)
        self.activation = nn.ReLU()
        self.output = nn.Linear(2 * hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values [...] of hidden states [..., H], in the precision of the head, whatever the trunk runs in."""
        with torch.autocast(hidden.device.type, enabled=False):
            dense = self.dense(hidden.to(self.dense.weight.dtype))
            return cast(Tensor, self.output(self.activation(dense)).squeeze(-1))


class PPOModel(nn.Module):
    """A causal language model with a critic on its last hidden states.

    Attributes:
        base_model: the language model, with or without adapters.
        hidden_size: H, the width that the output layer and the critic read.
        value_head: the critic.

    Raises:
        ConfigError: the logits are not a function of the decoder's last hidden state that this library knows.
    """

    def __init__(self, base_model: CausalLM):
        super().__init__()
        self.base_model = base_model
        require_separable(base_model)
        head = TrunkAndHead(base_model).head
        self.hidden_size: int = head.weight.shape[-1]
        self.value_head = ValueHead(self.hidden_size).to(head.weight.device)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_value: bool = False
    ) -> dict[str, Tensor]:
        """`logits` [B, L, V] and, if asked for, `values` [B, L] of input_ids [B, L] with attention_mask [B, L]."""
        parts = TrunkAndHead(self.base_model)
        hidden = parts.hidden(input_ids, attention_mask)
        outputs = {"logits": parts.logits(hidden)}
        return {**outputs, "values": self.value_head(hidden)} if return_value else outputs

    def response_outputs(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """Log-probabilities, entropy and values of the response tokens, all with gradient.

        Raises:
            ConfigError: temperature is not above 0.
        """
        return self._measured(response_logprobs_and_entropy, sequences, temperature)

    def response_outputs_with_detached_entropy(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """As response_outputs, the entropy without gradient: a metric keeps no memory for the backward pass."""
        return self._measured(response_logprobs_and_detached_entropy, sequences, temperature)

    def response_outputs_with_detached_trunk(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """As response_outputs, with gradient for the critic's own weights alone: the policy stays where it is."""
        with torch.no_grad():
            states = _response_states(self.base_model, sequences)
            logprobs, entropy = _of_states(
                response_logprobs_and_detached_entropy, self.base_model, states, sequences, temperature
            )
        values = self.value_head(states[:, :-1]).where(sequences.response_mask, 0.0)
        return ResponseOutputs(logprobs, entropy, values)

    def bootstrap_values(self, sequences: Sequences) -> Tensor:
        """Values [B] after the last token of each response: what is still to come where the length limit cut it."""
        states = _response_states(self.base_model, sequences)
        rows = torch.arange(len(sequences), device=states.device)
        return cast(Tensor, self.value_head(states[rows, sequences.response_lengths]))

    def _measured(self, measure: Measure, sequences: Sequences, temperature: float) -> ResponseOutputs:
        states = _response_states(self.base_model, sequences)
        logprobs, entropy = _of_states(measure, self.base_model, states, sequences, temperature)
        values = self.value_head(states[:, :-1]).where(sequences.response_mask, 0.0)
        return ResponseOutputs(logprobs, entropy, values)


def language_model_of(policy: nn.Module) -> CausalLM:
    """The causal language model of a policy, which may be one itself or have a critic beside it."""
    return cast(CausalLM, policy.base_model if isinstance(policy, PPOModel) else policy)


def value_head_of(policy: nn.Module) -> ValueHead | None:
    """The critic of a policy; None where it has none."""
    return policy.value_head if isinstance(policy, PPOModel) else None


def sampled_logprobs(model: CausalLM, sequences: Sequences, temperature: float) -> Tensor:
    """Log-probabilities [B, T] of the sampled tokens, nats at the temperature, float32; 0 outside the response mask.

    Raises:
        ConfigError: temperature is not above 0.
    """
    states, head = _response_states(model, sequences), TrunkAndHead(model).logits
    logprobs = response_logprobs(states, head, sequences.response_ids, temperature=temperature)
    return logprobs.where(sequences.response_mask, 0.0)


def sampled_logprobs_and_detached_entropy(
    model: CausalLM, sequences: Sequences, temperature: float
) -> tuple[Tensor, Tensor]:
    """sampled_logprobs, and the entropy of the unfiltered distribution of each of these tokens, both [B, T] in nats.

    The entropy is without gradient: a metric keeps no memory for the backward pass.
    """
    states = _response_states(model, sequences)
    return _of_states(response_logprobs_and_detached_entropy, model, states, sequences, temperature)


def _of_states(
    measure: Measure, model: CausalLM, states: Tensor, sequences: Sequences, temperature: float
) -> tuple[Tensor, Tensor]:
    head, mask = TrunkAndHead(model).logits, sequences.response_mask
    logprobs, entropy = measure(states, head, sequences.response_ids, temperature=temperature)
    return logprobs.where(mask, 0.0), entropy.where(mask, 0.0)


def _response_states(model: CausalLM, sequences: Sequences) -> Tensor:
    """Hidden states [B, 1 + T, H] at the last prompt token and at each response token.

    Rows are shifted to start in the first column: then all padding is on the right, where a causal model needs no
    mask, and positions count from 0 even in models that know absolute positions only.
    """
    prompt_mask = sequences.attention_mask[:, : sequences.prompt_length]
    prompt_lengths = prompt_mask.sum(dim=1, keepdim=True)
    total_length = sequences.input_ids.shape[1]
    width = int(sequences.attention_mask.sum(dim=1).max())
    counter = torch.arange(total_length + 1, device=prompt_lengths.device)
    columns = (sequences.prompt_length - prompt_lengths + counter[:width]).clamp(max=total_length - 1)
    hidden = TrunkAndHead(model).hidden(sequences.input_ids.gather(1, columns))
    steps = sequences.response_mask.shape[1] + 1
    positions = (prompt_lengths - 1 + counter[:steps]).clamp(max=width - 1)
    rows = positions + width * torch.arange(len(positions), device=positions.device)[:, None]
    return hidden.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)
