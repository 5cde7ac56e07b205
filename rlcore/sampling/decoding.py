"""Hidden states token by token: with key-value caches where they are proven right, without where not."""

import logging
from collections.abc import Callable
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rlcore.models import CausalLM, TrunkAndHead, evaluation_mode, without_wrapper

logger = logging.getLogger(__name__)


class Decoding(Protocol):
    """The state of a batch that grows by one token at a time."""

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
        """Hidden states [B, H] of the last token of left-padded prompts [B, P]."""

    def advance(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, H] of the next tokens [B]."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, in this order; a row may come several times."""


NewDecoding = Callable[[TrunkAndHead, int], Decoding]
"""From decoder and head and the number of tokens that a row may grow to."""

_proven: WeakKeyDictionary[PreTrainedModel, NewDecoding] = WeakKeyDictionary()


def decoding_for(model: CausalLM) -> NewDecoding:
    """The fastest decoding that reproduces the model's own forward pass, tried out when the model is first seen."""
    causal_lm = without_wrapper(model)
    if causal_lm not in _proven:
        _proven[causal_lm] = _first_proven(causal_lm)
    return _proven[causal_lm]


class BufferLayer(DynamicLayer):
    """Keys and values of one attention layer in buffers of full length, so that no step copies the earlier ones."""

    def __init__(self, capacity: int):
        super().__init__()
        self._capacity = capacity
        self._length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the batch and the number of heads that come first."""
        self.device = key_states.device
        self.keys = key_states.new_empty(*key_states.shape[:2], self._capacity, key_states.shape[3])
        self.values = value_states.new_empty(*value_states.shape[:2], self._capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append states [B, heads, new, width]; returns views of all so far."""
        if self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        start, self._length = self._length, self._length + key_states.shape[2]
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_seq_length(self) -> int:
        """Tokens so far, padding included."""
        return self._length


class CachedDecoding:
    """Decoding with a key-value cache.

    Args:
        parts: decoder and head.
        cache: empty cache.
        capacity: tokens that a row may grow to.
        step_mask: turns the mask [B, capacity] of what a new token may see into the form that the decoder takes; the
            last dimension stays.
    """

    def __init__(self, parts: TrunkAndHead, cache: DynamicCache, capacity: int, step_mask: Callable[[Tensor], Tensor]):
        self._parts = parts
        self._arguments = {("cache" if "cache" in parts.arguments else "past_key_values"): cache, "use_cache": True}
        self._cache = cache
        self._capacity = capacity
        self._step_mask = step_mask
        self._mask: Tensor | None = None
        self._length = 0
        self._positions = torch.empty(0)

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
        """See Decoding."""
        rows, self._length = prompt_ids.shape
        self._positions = prompt_mask.sum(dim=1, keepdim=True)
        if bool(prompt_mask.all()):
            # Without a mask attention takes its fast path.
            return self._parts.hidden(prompt_ids, None, **self._arguments)[:, -1]
        later = prompt_mask.new_ones(rows, self._capacity - self._length)
        self._mask = self._step_mask(torch.cat([prompt_mask, later], dim=1))
        return self._parts.hidden(prompt_ids, prompt_mask, **self._arguments)[:, -1]

    def advance(self, tokens: Tensor) -> Tensor:
        """See Decoding."""
        self._length += 1
        if self._mask is None:
            return self._parts.hidden(tokens[:, None], None, **self._arguments)[:, -1]
        positions = {"position_ids": self._positions} if "position_ids" in self._parts.arguments else {}
        hidden = self._parts.hidden(tokens[:, None], self._mask[..., : self._length], **positions, **self._arguments)
        self._positions = self._positions + 1
        return hidden[:, -1]

    def keep(self, rows: Tensor) -> None:
        """See Decoding."""
        self._cache.reorder_cache(cast(torch.LongTensor, rows))
        self._positions = self._positions[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]


class RecomputingDecoding:
    """Decoding without a cache: each step reads the whole rows again. Slow, and right for every causal model."""

    def __init__(self, parts: TrunkAndHead, capacity: int):
        self._parts = parts
        self._ids = self._mask = torch.empty(0)

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
        """See Decoding."""
        self._ids, self._mask = prompt_ids, prompt_mask
        return self._parts.hidden(self._ids, None if bool(self._mask.all()) else self._mask)[:, -1]

    def advance(self, tokens: Tensor) -> Tensor:
        """See Decoding."""
        column = tokens[:, None]
        return self.start(
            torch.cat([self._ids, column], dim=1), torch.cat([self._mask, torch.ones_like(column)], dim=1)
        )

    def keep(self, rows: Tensor) -> None:
        """See Decoding."""
        self._ids, self._mask = self._ids[rows], self._mask[rows]


def _first_proven(causal_lm: PreTrainedModel) -> NewDecoding:
    for candidate in _cached_candidates(causal_lm):
        if _reproduces_forward(causal_lm, candidate):
            return candidate
    logger.warning(
        "%s: no key-value cache reproduces the model's own forward pass. Sampling is right but slow, since each token "
        "reads the whole row again.",
        type(causal_lm).__name__,
    )
    return RecomputingDecoding


def _cached_candidates(causal_lm: PreTrainedModel) -> list[NewDecoding]:
    arguments = TrunkAndHead(causal_lm).arguments
    if not arguments & {"cache", "past_key_values"}:
        return []
    config = causal_lm.config

    def buffered(parts: TrunkAndHead, capacity: int) -> Decoding:
        cache = DynamicCache(config=config)
        cache.layers = [BufferLayer(capacity) for _ in cache.layers]
        return CachedDecoding(parts, cache, capacity, lambda mask: mask.bool()[:, None, None, :])

    def growing(parts: TrunkAndHead, capacity: int) -> Decoding:
        return CachedDecoding(parts, DynamicCache(config=config), capacity, lambda mask: mask)

    # Windowed layers drop old tokens and mask by window, and other attention functions read other masks.
    layers = DynamicCache(config=config).layers
    plain = (
        all(type(layer) is DynamicLayer for layer in layers) and config.get_text_config()._attn_implementation == "sdpa"
    )
    return [buffered, growing] if layers and plain and "position_ids" in arguments else [growing]


def _reproduces_forward(causal_lm: PreTrainedModel, new_decoding: NewDecoding) -> bool:
    """Whether ragged rows, decoded side by side and partly dropped, get the log-probabilities of each row alone."""
    device, vocab_size = causal_lm.device, causal_lm.config.get_text_config().vocab_size
    lengths, kept = (torch.tensor(rows, device=device) for rows in ([5, 1, 7, 2, 3], [4, 0, 0, 2]))
    width, steps = int(lengths.max()), 4
    mixed = 7 * torch.arange(len(lengths) * (width + steps), device=device)
    ids = 1 + mixed.view(len(lengths), -1) % (vocab_size - 1)
    prompt_mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    with torch.no_grad(), evaluation_mode(causal_lm):
        rows = [
            causal_lm(input_ids=row[None, width - length :]).logits[0] for row, length in zip(ids, lengths, strict=True)
        ]
        alone = torch.stack([logits[-steps - 1 : -1] for logits in rows])
        parts = TrunkAndHead(causal_lm)
        decoding = new_decoding(parts, width + steps)
        try:
            states = [decoding.start(ids[:, :width], prompt_mask), decoding.advance(ids[:, width])]
            decoding.keep(kept)
            states += [decoding.advance(ids[kept, width + step]) for step in range(1, steps - 1)]
        # What models raise on a cache that they were not written for.
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            logger.info("%s: %s", type(causal_lm).__name__, error)
            return False
        found = parts.logits(torch.cat(states))
    expected = torch.cat([alone[:, 0], alone[:, 1], *alone[kept, 2:].unbind(dim=1)])
    return _agree(found, expected)


def _agree(found: Tensor, expected: Tensor) -> bool:
    full_precision = found.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    # A wrong mask or position shows as tenths of a nat at least; half precision rounds logits by as much.
    tolerance = 1e-4 if full_precision else 0.25
    found, expected = (logits.float().log_softmax(dim=-1) for logits in (found, expected))
    return torch.allclose(found, expected, rtol=1e-4, atol=tolerance)
