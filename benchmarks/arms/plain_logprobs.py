"""Peer: log-probabilities as most code has them, a log-softmax of all logits."""

import torch
from torch import Tensor

from benchmarks.arms.inputs import head_inputs
from benchmarks.protocol import Facts, Work


class Logprobs:
    """Forward and backward of the whole rectangle [B, L, V]; arguments as of own_pieces.Logprobs."""

    def __init__(
        self, rows: int, length: int, response_length: int, hidden: int, vocabulary: int, frozen: bool
    ) -> None:
        self.hidden, self.head, self.ids = head_inputs(rows, length, response_length, hidden, vocabulary, frozen)

    def unit(self) -> Work:
        """Forward and backward."""
        self.hidden.grad = self.head.weight.grad = None
        logprobs = self._logprobs(self.hidden, self.ids)
        logprobs.sum().backward()
        return Work(self.ids.numel(), loss=logprobs.sum().item())

    @torch.no_grad()
    def facts(self, other: Facts | None) -> Facts:
        """Of the first row."""
        return {"logprobs/first_row": self._logprobs(self.hidden[:1], self.ids[:1])[0].tolist()}

    def _logprobs(self, hidden: Tensor, ids: Tensor) -> Tensor:
        prompt_length = hidden.shape[1] - ids.shape[1]
        logprobs = self.head(hidden).log_softmax(dim=-1)[:, prompt_length - 1 : -1]
        return logprobs.gather(2, ids[..., None])[..., 0]
