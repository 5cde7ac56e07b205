"""Masks, and the statistics and selections under them. A mask selects, it does not multiply: NaN * 0 is NaN."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlcore.errors import DataError
from rlcore.functional.precision import at_least_float32


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of x where mask is True, a scalar.

    Args:
        x: float or integer, any shape.
        mask: bool, the shape of x.

    Raises:
        DataError: the shapes differ.
    """
    require_same_shape(x=x, mask=mask)
    return at_least_float32(x).where(mask, 0.0).sum()


def masked_mean(x: Tensor, mask: Tensor, count: Tensor | float | None = None) -> Tensor:
    """Sum of x where mask is True, over count, a scalar.

    Args:
        x: float or integer, any shape.
        mask: bool, the shape of x.
        count: the entries of the whole optimiser step, which makes the parts of a split batch add up; None counts the
            True entries of this mask. Nothing to count gives 0, not NaN.

    Raises:
        DataError: the shapes differ.
    """
    total = masked_sum(x, mask)
    divisor = torch.as_tensor(mask.sum() if count is None else count, dtype=total.dtype, device=total.device)
    return total / divisor.where(divisor > 0, 1.0)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance (divided by n, not n - 1) of x where mask is True, a scalar; 0 for a single entry or none.

    Raises:
        DataError: the shapes differ.
    """
    return masked_mean(_deviations(x, mask).square(), mask)


def whiten(x: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) with mean and population variance over mask; 0 where mask is False.

    Equal entries, or a single one, give 0.

    Raises:
        DataError: the shapes differ.
    """
    deviations = _deviations(x, mask)
    return deviations / (masked_mean(deviations.square(), mask) + epsilon).sqrt()


def scale_to_unit_std(x: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Whitened x with its mean put back: only the spread changes. 0 where mask is False.

    Raises:
        DataError: the shapes differ.
    """
    return (whiten(x, mask, epsilon) + masked_mean(x, mask)).where(mask, 0.0)


def response_mask_from(response_ids: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """The sampled tokens of each response: all up to and including its first EOS.

    Nothing is compared with a pad id, so a tokenizer whose pad is its EOS keeps the EOS that was sampled.

    Args:
        response_ids: int64 [B, T], right-padded.
        eos_ids: the ids that end a response; without any, all tokens are real.

    Returns:
        bool [B, T].
    """
    ends = torch.isin(response_ids, torch.tensor(list(eos_ids), dtype=response_ids.dtype, device=response_ids.device))
    ends_before = ends.long().cumsum(dim=-1) - ends.long()
    return ends_before == 0


def last_index(mask: Tensor) -> Tensor:
    """Position of the last True of each row, int64 [B], on whichever side the padding is.

    Args:
        mask: bool or 0/1 [B, L].

    Raises:
        DataError: a row has no True.
    """
    _require_tokens(mask)
    positions = torch.arange(mask.shape[-1], device=mask.device)
    return torch.where(mask.bool(), positions, -1).amax(dim=-1)


def position_ids_from(attention_mask: Tensor) -> Tensor:
    """Positions that count real tokens only, int64 [B, L]: a left-padded row gets the positions of the unpadded one.

    Args:
        attention_mask: bool or 0/1 [B, L]. Padding in front gets position 0.
    """
    return (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)


def pool_last(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The hidden state of the last real token: [B, L, H] and bool or 0/1 [B, L] to [B, H].

    Raises:
        DataError: a row has no real token.
    """
    return _take(hidden, last_index(attention_mask))


def pool_cls(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The hidden state of the first real token, which is [CLS] in an encoder: [B, L, H] and [B, L] to [B, H].

    Raises:
        DataError: a row has no real token.
    """
    _require_tokens(attention_mask)
    return _take(hidden, attention_mask.int().argmax(dim=-1))


def pool_mean(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean hidden state of the real tokens: [B, L, H] and [B, L] to [B, H], in the precision of hidden.

    Raises:
        DataError: a row has no real token.
    """
    _require_tokens(attention_mask)
    real = attention_mask.bool().unsqueeze(-1)
    return (at_least_float32(hidden).where(real, 0.0).sum(dim=1) / real.sum(dim=1)).to(hidden.dtype)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"last": pool_last, "mean": pool_mean, "cls": pool_cls}


def require_same_shape(**tensors: Tensor) -> None:
    """Stop before broadcasting turns tensors that do not belong together into a number.

    Raises:
        DataError: the shapes differ.
    """
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise DataError(
            f"Found the shapes {found}; expected equal ones. Pass one entry for each token, or for each pair."
        )


def _deviations(x: Tensor, mask: Tensor) -> Tensor:
    """X less its masked mean, 0 where mask is False."""
    require_same_shape(x=x, mask=mask)
    deviations = at_least_float32(x).where(mask, 0.0)
    # The second pass removes what rounding left in the first mean, so that equal entries give exactly 0.
    for _ in range(2):
        deviations = (deviations - masked_mean(deviations, mask)).where(mask, 0.0)
    return deviations


def _take(hidden: Tensor, positions: Tensor) -> Tensor:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), positions]


def _require_tokens(mask: Tensor) -> None:
    empty = ~mask.bool().any(dim=-1)
    if bool(empty.any()):
        raise DataError(
            f"Rows {empty.nonzero().flatten().tolist()} have no real token; expected at least one in each row. "
            "Drop rows that are empty after tokenisation."
        )
