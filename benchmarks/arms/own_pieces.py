"""Ours: advantages, a queued training step, log-probabilities of a large vocabulary."""

import torch

from benchmarks.arms.inputs import head_inputs, tables
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import GAMMA, LAM, PAIR_LEARNING_RATE, prompts
from rlcore import ForwardBackwardPipeline
from rlcore.functional.advantages import gae
from rlcore.functional.logprobs import response_logprobs
from rlcore.models import load_causal_lm


class Advantages:
    """`gae` of rows by steps, so many times."""

    def __init__(self, rows: int, steps: int, repeats: int) -> None:
        self.repeats = repeats
        self.rewards, self.values = (torch.tensor(table) for table in tables(rows, steps))

    def unit(self) -> Work:
        """All repeats."""
        for _ in range(self.repeats):
            self._advantages(self.rewards, self.values)
        return Work(self.repeats * self.rewards.numel())

    def facts(self, other: Facts | None) -> Facts:
        """Of the first row."""
        return {"advantages/first_row": self._advantages(self.rewards[:1], self.values[:1])[0].tolist()}

    def _advantages(self, rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(rewards, dtype=torch.bool)
        return gae(rewards, values, mask, torch.zeros(len(rewards)), gamma=GAMMA, lam=LAM)[0]


class PipelineStep:
    """ForwardBackwardPipeline: so many times a forward, backward and optimiser step, one waiting for the other."""

    def __init__(self, model: str, rows: int, length: int, vocabulary: int, repeats: int) -> None:
        self.repeats = repeats
        self.ids = torch.tensor(prompts(rows, length, vocabulary))
        self.model = load_causal_lm(model)
        self.pipeline = ForwardBackwardPipeline(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=PAIR_LEARNING_RATE)

    def unit(self) -> Work:
        """All repeats."""
        loss = 0.0
        for _ in range(self.repeats):
            loss = self._forward_backward()
            self.pipeline.optim_step(self.optimizer).result()
        return Work(self.repeats * self.ids.numel(), steps=self.repeats, loss=loss)

    def facts(self, other: Facts | None) -> Facts:
        """The first loss."""
        if other is not None:
            return {}
        loss = self._forward_backward()
        self.pipeline.optim_step(self.optimizer).result()
        return {"loss/first_step": loss}

    def _forward_backward(self) -> float:
        return float(self.pipeline.forward_backward(self.ids, labels=self.ids).result().loss)


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
