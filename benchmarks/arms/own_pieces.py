"""Ours: advantages, a queued training step, log-probabilities of a large vocabulary."""

import torch

from benchmarks.arms.inputs import head_inputs, tables
from benchmarks.arms.pieces import AdvantagesOfTables, QueuedSteps
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import GAMMA, LAM
from rlcore import ForwardBackwardPipeline
from rlcore.functional.advantages import gae
from rlcore.functional.logprobs import response_logprobs
from rlcore.models import load_causal_lm


class Advantages(AdvantagesOfTables):
    """`gae` of rows by steps."""

    def __init__(self, rows: int, steps: int, repeats: int) -> None:
        super().__init__(tables(rows, steps), repeats)

    def advantages(self, rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See AdvantagesOfTables."""
        mask = torch.ones_like(rewards, dtype=torch.bool)
        return gae(rewards, values, mask, torch.zeros(len(rewards)), gamma=GAMMA, lam=LAM)[0]


class PipelineStep(QueuedSteps):
    """ForwardBackwardPipeline."""

    def __init__(self, model: str, rows: int, length: int, vocabulary: int, repeats: int) -> None:
        loaded = load_causal_lm(model)
        super().__init__(loaded, ForwardBackwardPipeline(loaded), rows, length, vocabulary, repeats)

    def facts(self, other: Facts | None) -> Facts:
        """The first loss."""
        return {} if other is not None else {"loss/first_step": self.step()}


class Logprobs:
    """`response_logprobs` and its backward pass: the output layer sees the response alone.

    Args:
        rows, length, response_length, hidden, vocabulary: of the states and the output layer.
        frozen: the output layer takes no gradient, as under adapters.
    """

    def __init__(
        self, rows: int, length: int, response_length: int, hidden: int, vocabulary: int, frozen: bool
    ) -> None:
        self.hidden, self.head, self.ids = head_inputs(rows, length, response_length, hidden, vocabulary, frozen)

    def unit(self) -> Work:
        """Forward and backward."""
        self.hidden.grad = self.head.weight.grad = None
        logprobs = response_logprobs(self.hidden, self.head, self.ids, temperature=1.0)
        logprobs.sum().backward()
        return Work(self.ids.numel(), loss=logprobs.sum().item())

    @torch.no_grad()
    def facts(self, other: Facts | None) -> Facts:
        """Of the first row."""
        logprobs = response_logprobs(self.hidden[:1], self.head, self.ids[:1], temperature=1.0)
        return {"logprobs/first_row": logprobs[0].tolist()}
