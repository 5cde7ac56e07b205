"""What the arms of small pieces do alike on both sides; runs in every peer's environment."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from benchmarks.protocol import Facts, Work
from benchmarks.workloads import PAIR_LEARNING_RATE, prompts

Table = list[list[float]]


class AdvantagesOfTables(ABC):
    """Advantages of rewards and values [rows, steps], so many times."""

    def __init__(self, rewards_and_values: tuple[Table, Table], repeats: int) -> None:
        self.repeats = repeats
        self.rewards, self.values = map(torch.tensor, rewards_and_values)

    @abstractmethod
    def advantages(self, rewards: torch.Tensor, values: torch.Tensor) -> Any:
        """Advantages [rows, steps]."""

    def unit(self) -> Work:
        """All repeats."""
        for _ in range(self.repeats):
            self.advantages(self.rewards, self.values)
        return Work(self.repeats * self.rewards.numel())

    def facts(self, other: Facts | None) -> Facts:
        """Of the first row."""
        return {"advantages/first_row": self.advantages(self.rewards[:1], self.values[:1])[0].tolist()}


class QueuedSteps:
    """So many times a forward, backward and optimiser step of a pipeline, one waiting for the other."""

    def __init__(self, model: Any, pipeline: Any, rows: int, length: int, vocabulary: int, repeats: int) -> None:
        self.repeats, self.pipeline = repeats, pipeline
        self.ids = torch.tensor(prompts(rows, length, vocabulary))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=PAIR_LEARNING_RATE)

    def unit(self) -> Work:
        """All repeats."""
        loss = 0.0
        for _ in range(self.repeats):
            loss = self.step()
        return Work(self.repeats * self.ids.numel(), steps=self.repeats, loss=loss)

    def step(self) -> float:
        """One of them; its loss."""
        loss = float(self.pipeline.forward_backward(self.ids, labels=self.ids).result().loss)
        self.pipeline.optim_step(self.optimizer).result()
        return loss
