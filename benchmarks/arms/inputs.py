"""Numbers that both sides compute on."""

import random

import torch
from torch import Tensor, nn


def tables(rows: int, steps: int) -> tuple[list[list[float]], list[list[float]]]:
    """Rewards and values [rows, steps]."""
    draw = random.Random(0)
    rewards, values = ([[draw.gauss(0, 1) for _ in range(steps)] for _ in range(rows)] for _ in range(2))
    return rewards, values


def head_inputs(
    rows: int, length: int, response_length: int, hidden: int, vocabulary: int, frozen: bool
) -> tuple[Tensor, nn.Linear, Tensor]:
    """Hidden states [rows, length, hidden] with gradient, an output layer, response ids [rows, response_length]."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, length, hidden, generator=generator, requires_grad=True)
    head = nn.Linear(hidden, vocabulary, bias=False)
    with torch.no_grad():
        head.weight.normal_(0, 0.02, generator=generator)
    head.weight.requires_grad_(not frozen)
    return states, head, torch.randint(vocabulary, (rows, response_length), generator=generator)
