"""Models of a few numbers for tests of queued training."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rlcore.batches import right_pad
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.accumulation import LossFunction
from rlcore.forward_backward.token_losses import token_rows, token_scores
from tests.support.tiny import PAD_ID, VOCAB_SIZE

CPU = torch.device("cpu")


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


class RaggedRows:
    """Rows of 2 to 7 tokens, and their mean loss per predicted token over a whole optimiser step."""

    def __init__(self, count: int, vocab_size: int = VOCAB_SIZE):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 8, (count,), generator=generator).tolist()
        self.rows = [torch.randint(1, vocab_size, (length,), generator=generator).tolist() for length in lengths]

    def loss_of(self, step: Sequence[int]) -> Callable[[list[int]], LossFunction]:
        """From some rows of a step to their loss, divided by the predicted tokens of the step."""
        token_count = sum(len(self.rows[row]) - 1 for row in step)
        return lambda part: partial(self._loss, part, token_count)

    def _loss(self, part: list[int], token_count: int, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        ids, mask = right_pad([self.rows[row] for row in part], PAD_ID)
        scores = token_scores(model(input_ids=ids, attention_mask=mask).logits, token_rows(ids, mask, None, CPU))
        correct = (scores.logits.argmax(-1) == ids[:, 1:]) & scores.mask
        return -scores.logprobs.sum() / token_count, {"row_count": torch.tensor(len(part)), "correct": correct.sum()}
