"""Log-probabilities and entropies of tokens, in nats."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rlcore.errors import ConfigError, DataError
from rlcore.functional.precision import at_least_float32

IGNORED_LABEL = -100
SKIP_NO_ID = torch.iinfo(torch.int64).min  # as an id, -100 is an error like every other one outside the vocabulary
MAX_LOGIT_BYTES = 256 * 2**20
FROZEN_HEAD_LOGIT_BYTES = 16 * 2**20  # nothing is computed twice there, so small chunks cost no time

Head = Callable[[Tensor], Tensor]
Measure = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-softmax of logits / temperature at ids.

    Args:
        logits: float [..., V]; -inf bans a token.
        ids: int64 [...], each in 0 .. V-1; logits[i] predicts ids[i].
        temperature: above 0. It has to be the one that the tokens were sampled at, or the ratio to the sampling policy
            is not 1 before the first update.

    Raises:
        ConfigError: temperature is not above 0.
        IndexError: an id is outside the vocabulary, IGNORED_LABEL included.
    """
    scaled = _scaled(logits, temperature).reshape(-1, logits.shape[-1])
    return -F.cross_entropy(scaled, ids.reshape(-1), reduction="none", ignore_index=SKIP_NO_ID).view(ids.shape)


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Shannon entropy of softmax(logits / temperature) over the whole vocabulary, before any top-k or top-p filter.

    A token at -inf adds 0 to the entropy and gets gradient 0.

    Args:
        logits: float [..., V].
        temperature: above 0.

    Returns:
        entropy [...], between 0 and ln V.

    Raises:
        ConfigError: temperature is not above 0.
    """
    return _entropy_of(_scaled(logits, temperature).log_softmax(dim=-1))


def response_logprobs(
    hidden: Tensor, head: Head, response_ids: Tensor, *, temperature: float, max_logit_bytes: int = MAX_LOGIT_BYTES
) -> Tensor:
    """Log-probabilities of the response tokens. Here, and nowhere else, positions shift by one.

    The head sees only the hidden states that predict a response token. Where their logits would take more than
    max_logit_bytes, they are computed in chunks of a quarter of it and, with gradients, once more in the backward pass.
    Under a head that takes no gradient no logits are kept at all: see _UnderFrozenHead.

    Args:
        hidden: float [B, L, H], last layer over prompts and responses joined, L = P + T. The state at P-1+t predicts
            response token t.
        head: maps [n, H] to logits [n, V].
        response_ids: int64 [B, T].
        temperature: above 0; the sampling temperature.
        max_logit_bytes: in float32.

    Returns:
        logprobs [B, T]. Padding gets a number too; the response mask leaves it out.

    Raises:
        ConfigError: temperature is not above 0.
        DataError: no prompt token is left in front of the responses.
    """
    measure = partial(_measure_logprobs, temperature=temperature)
    return _over_response(measure, hidden, head, response_ids, max_logit_bytes)[0]


def response_logprobs_and_entropy(
    hidden: Tensor, head: Head, response_ids: Tensor, *, temperature: float, max_logit_bytes: int = MAX_LOGIT_BYTES
) -> tuple[Tensor, Tensor]:
    """response_logprobs and the entropy of each position from the same logits, both [B, T] and both with gradient."""
    measure = partial(_measure_both, temperature=temperature)
    logprobs, entropies = _over_response(measure, hidden, head, response_ids, max_logit_bytes)
    return logprobs, entropies


def response_logprobs_and_detached_entropy(
    hidden: Tensor, head: Head, response_ids: Tensor, *, temperature: float, max_logit_bytes: int = MAX_LOGIT_BYTES
) -> tuple[Tensor, Tensor]:
    """As response_logprobs_and_entropy, the entropy without gradient: a metric keeps no memory for the backward."""
    measure = partial(_measure_both_detached, temperature=temperature)
    logprobs, entropies = _over_response(measure, hidden, head, response_ids, max_logit_bytes)
    return logprobs, entropies


def sequence_logprobs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of the labelled tokens of each row, and how many they are.

    Args:
        logits: float [B, L, V]. Rows without a label may hold anything, NaN included.
        labels: int64 [B, L], aligned: logits[:, t] predicts labels[:, t]; IGNORED_LABEL does not count.

    Returns:
        sums [B] in nats, counts int64 [B]. A row without a label has sum 0 and count 0: check before a division.
    """
    counted = labels != IGNORED_LABEL
    # Selecting before the softmax saves the work for prompts and padding, and keeps their NaN out of the gradient.
    chosen = token_logprobs(logits[counted], labels[counted])
    logprobs = torch.zeros(labels.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(counted, chosen)
    return logprobs.sum(dim=-1), counted.sum(dim=-1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ConfigError(
            f"temperature={temperature}: expected a number above 0, since the logits are divided by it. "
            "Greedy decoding has no log-probabilities of its own: use 1 for those of the model."
        )
    logits = at_least_float32(logits)
    return logits if temperature == 1 else logits / temperature


def _entropy_of(log_probabilities: Tensor) -> Tensor:
    probabilities = log_probabilities.exp()
    finite = log_probabilities.masked_fill(probabilities == 0, 0.0)  # 0 * -inf is NaN, in the value and in the gradient
    return -(probabilities * finite).sum(dim=-1)


def _chosen(log_probabilities: Tensor, ids: Tensor) -> Tensor:
    return -F.nll_loss(log_probabilities, ids, reduction="none", ignore_index=SKIP_NO_ID)


def _measure_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, ...]:
    return (token_logprobs(logits, ids, temperature),)


def _measure_both(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, ...]:
    log_probabilities = _scaled(logits, temperature).log_softmax(dim=-1)
    return _chosen(log_probabilities, ids), _entropy_of(log_probabilities)


def _measure_both_detached(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, ...]:
    log_probabilities = _scaled(logits, temperature).log_softmax(dim=-1)
    return _chosen(log_probabilities, ids), _entropy_of(log_probabilities.detach())


def _over_response(
    measure: Measure, hidden: Tensor, head: Head, response_ids: Tensor, max_logit_bytes: int
) -> list[Tensor]:
    """Apply measure to the logits that predict each response token: tensors [B, T]."""
    prompt_length = hidden.shape[1] - response_ids.shape[1]
    if prompt_length < 1:
        raise DataError(
            f"Found {response_ids.shape[1]} response tokens in sequences of {hidden.shape[1]}; expected at least one "
            "prompt token in front of them, which predicts the first. Start an empty prompt with BOS or EOS."
        )
    rows = hidden[:, prompt_length - 1 : -1].reshape(-1, hidden.shape[-1])
    ids = response_ids.reshape(-1)

    def measure_rows(rows: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        return measure(head(rows), ids)

    learns = torch.is_grad_enabled() and rows.requires_grad
    row_bytes, is_trained = _look_at(head, rows)
    if learns and not is_trained:
        chunk = max(1, min(max_logit_bytes, FROZEN_HEAD_LOGIT_BYTES) // row_bytes)
        found: tuple[Tensor, ...] = _UnderFrozenHead.apply(rows, ids, measure_rows, chunk)  # type: ignore[no-untyped-call]
        return [measured.view(response_ids.shape) for measured in found]
    if len(rows) * row_bytes <= max_logit_bytes:
        return [measured.view(response_ids.shape) for measured in measure_rows(rows, ids)]
    chunk = max(1, max_logit_bytes // 4 // row_bytes)
    run = partial(checkpoint, measure_rows, use_reentrant=False) if torch.is_grad_enabled() else measure_rows
    parts = [run(*part) for part in zip(torch.split(rows, chunk), torch.split(ids, chunk), strict=True)]
    return [torch.cat(measured).view(response_ids.shape) for measured in zip(*parts, strict=True)]


def _look_at(head: Head, rows: Tensor) -> tuple[int, bool]:
    """Bytes of a row of logits in float32, and whether the head itself takes a gradient."""
    with torch.enable_grad():
        logits = head(rows[:1].detach())
    return logits.shape[-1] * torch.finfo(torch.float32).bits // 8, logits.requires_grad


class _UnderFrozenHead(torch.autograd.Function):
    """Measures of rows under a head without gradient, as under LoRA: chunk by chunk, no logits kept.

    A measure of row i depends on the hidden state of row i alone. So its gradient is known up to the factor that comes
    from above, and is taken in the forward pass while the logits are there: [n, H] is kept instead of [n, V], and
    nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, ids: Tensor, measure_rows: Callable[[Tensor, Tensor], tuple[Tensor, ...]], chunk: int
    ) -> tuple[Tensor, ...]:
        found: list[tuple[Tensor, ...]] = []
        gradients: list[list[Tensor]] = []
        for some_rows, some_ids in zip(torch.split(rows, chunk), torch.split(ids, chunk), strict=True):
            with torch.enable_grad():
                leaf = some_rows.detach().requires_grad_()
                measures = measure_rows(leaf, some_ids)
                totals = [measure.sum() for measure in measures if measure.requires_grad]
            gradients.append([torch.autograd.grad(total, leaf, retain_graph=True)[0] for total in totals])
            found.append(tuple(measure.detach() for measure in measures))
        ctx.carries = [measure.requires_grad for measure in measures]
        ctx.save_for_backward(*(torch.cat(parts) for parts in zip(*gradients, strict=True)))
        outputs = tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.mark_non_differentiable(*(out for out, carries in zip(outputs, ctx.carries, strict=True) if not carries))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        used = [factor for factor, carries in zip(factors, ctx.carries, strict=True) if carries]
        terms = [
            factor[:, None].to(gradient.dtype) * gradient
            for factor, gradient in zip(used, ctx.saved_tensors, strict=True)
        ]
        return sum(terms[1:], start=terms[0]), None, None, None
