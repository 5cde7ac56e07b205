"""Every loss of rlcore.functional.losses as a function of tensors, so that one test states a law for all."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlcore.functional import losses

B, T, N = 4, 12, 12
LENGTHS = torch.tensor([12, 1, 6, 0])
MASK = torch.arange(T) < LENGTHS.unsqueeze(1)
CLIP_RATIO, VALUE_CLIP = 0.2, 0.4


def draw(count: int, *shape: int, seed: int = 0) -> list[Tensor]:
    """Numbers between -3 and -0.01 in float64: right for log-probabilities, and for everything else too."""
    generator = torch.Generator().manual_seed(seed)
    return list(-0.01 - 2.99 * torch.rand(count, *shape, dtype=torch.float64, generator=generator))


def ppo(x: list[Tensor], mask: Tensor, count: float | None) -> Tensor:
    return losses.ppo_policy_loss(x[0], x[1], signed(x[2]), mask, clip_ratio=CLIP_RATIO, token_count=count)


def importance_sampling(x: list[Tensor], mask: Tensor, count: float | None) -> Tensor:
    return losses.importance_sampling_loss(x[0], x[1], signed(x[2]), mask, token_count=count)


def clipped_value(x: list[Tensor], mask: Tensor, count: float | None) -> Tensor:
    return losses.clipped_value_loss(*x, mask, value_clip=VALUE_CLIP, token_count=count)


def signed(x: Tensor) -> Tensor:
    """Advantages of both signs."""
    return x + 1.5


# name -> how many tensors [B, T] it takes, and the loss of these, a mask and a count of tokens.
TokenLoss = Callable[[list[Tensor], Tensor, float | None], Tensor]
TOKEN_LOSSES: dict[str, tuple[int, TokenLoss]] = {
    "token_mean": (1, lambda x, mask, count: losses.token_mean(*x, mask, count)),
    "ppo_policy": (3, ppo),
    "importance_sampling": (3, importance_sampling),
    "clipped_value": (3, clipped_value),
    "value": (3, lambda x, mask, count: losses.clipped_value_loss(*x, mask, value_clip=None, token_count=count)),
}
# The same with a count of responses.
SEQUENCE_LOSSES: dict[str, tuple[int, TokenLoss]] = {
    "sequence_mean": (1, lambda x, mask, count: losses.sequence_mean(*x, mask, count)),
    "constant_length": (
        1,
        lambda x, mask, count: losses.constant_length_mean(*x, mask, max_length=T, sequence_count=count),
    ),
}
# name -> how many tensors [N] it takes, and the loss of these and a count of pairs.
PAIR_LOSSES: dict[str, tuple[int, Callable[[list[Tensor], float | None], Tensor]]] = {
    "dpo": (4, lambda x, count: losses.dpo_loss(*x, beta=0.5, pair_count=count)),
    "dpo_smoothed": (4, lambda x, count: losses.dpo_loss(*x, beta=0.5, label_smoothing=0.2, pair_count=count)),
    "dpo_reference_free": (2, lambda x, count: losses.reference_free_dpo_loss(*x, beta=0.5, pair_count=count)),
    "dpo_reference_free_smoothed": (
        2,
        lambda x, count: losses.reference_free_dpo_loss(*x, beta=0.5, label_smoothing=0.2, pair_count=count),
    ),
    "orpo": (3, lambda x, count: losses.orpo_loss(*x, odds_coef=0.3, pair_count=count)),
    "bradley_terry": (2, lambda x, count: losses.bradley_terry_loss(*x, pair_count=count)),
    "bradley_terry_margin": (3, lambda x, count: losses.bradley_terry_loss(*x, pair_count=count)),
    "preference_label": (3, lambda x, count: losses.preference_label_loss(*x[:2], x[2] / -3, pair_count=count)),
    "centering": (2, lambda x, count: losses.centering_penalty(*x, coef=0.1, pair_count=count)),
}


def value_and_gradient(loss: Callable[[list[Tensor]], Tensor], x: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by the first tensor."""
    leaf = x[0].clone().requires_grad_()
    value = loss([leaf, *x[1:]])
    return value.detach(), torch.autograd.grad(value, leaf)[0]
