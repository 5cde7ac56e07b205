"""Models of a few numbers for tests of queued training."""

import torch
from torch import Tensor, nn

from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline


class OneNumber(nn.Module):
    """A model whose only parameter is a vector that starts at 0."""

    def __init__(self, size: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.dropout = nn.Dropout(0.5)


class UniformModel(nn.Module):
    """Every token of V equally likely. Takes tokens as a language model does."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.logit.expand(*input_ids.shape, -1)}


def sgd(client: AsyncTrainingClient | ForwardBackwardPipeline, learning_rate: float = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD(client.model.parameters(), lr=learning_rate)
