"""The sampling loop: prompts in, responses with log-probabilities and values out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from rlcore.batches import left_pad
from rlcore.errors import DataError, TrainingDiverged
from rlcore.models import CausalLM, TrunkAndHead, context_length, evaluation_mode, vocabulary_size
from rlcore.sampling.decoding import Decoding, decoding_for
from rlcore.sampling.tokens import SamplingParams, sample_tokens, uniform_streams

# Finished rows leave the batch once this share of it is left: moving the cache costs about one step.
COMPACT_AT = 0.75
# Steps between two looks at which rows have ended. A GPU waits for the host each time.
CPU_LOOK_INTERVAL, GPU_LOOK_INTERVAL = 1, 8

StopCondition = Callable[[list[int]], bool]
"""`stop(tokens)`: whether a response ends with the last of its tokens so far."""


@dataclass(frozen=True, eq=False)
class Samples:
    """One response for each prompt, on the model's device. [B, T] tensors are 0 or False on padding."""

    response_ids: Tensor
    """int64 [B, T], right-padded; T is the longest response that was sampled."""
    response_mask: Tensor
    """bool [B, T], True on sampled tokens, the end token included."""
    logprobs: Tensor
    """float32 [B, T], nats, of the whole distribution at the sampling temperature (of temperature 1 if that is 0)."""
    values: Tensor | None
    """float32 [B, T], critic before token t; None without a value head."""
    terminated: Tensor
    """bool [B], ended by an end token or the stop condition; the others were cut by the length limit."""

    def response_lists(self) -> list[list[int]]:
        """Tokens of each response, the end token included and the padding left out."""
        return [ids[mask].tolist() for ids, mask in zip(self.response_ids, self.response_mask, strict=True)]


def generate(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    seeds: Sequence[int],
    end_ids: Sequence[int],
    pad_id: int,
    value_head: nn.Module | None = None,
    stop: StopCondition | None = None,
) -> Samples:
    """Sample one response for each prompt, without gradient and in evaluation mode.

    A response depends on its prompt, its seed and the parameters, and on the rest of the batch only through rounding:
    where two tokens are tied to within that, another batch may draw the other one. Prompts that repeat are read once.

    Args:
        model: causal language model, with or without adapters.
        prompts: token ids, at least one each.
        params: how to sample.
        seeds: one for each prompt, at least 0; each row draws from a stream of its own.
        end_ids: tokens that end a response; they belong to it.
        pad_id: fills the rows.
        value_head: critic, maps hidden states [B, H] to values [B].
        stop: ends a response as an end token does; called after each of its tokens, which costs a GPU a wait.

    Raises:
        DataError: there is no prompt, a prompt is empty, too long for the model's context or has an unknown id, or the
            number of seeds differs.
        TrainingDiverged: the model's probabilities are not numbers.
    """
    _check_request(model, prompts, seeds, params.max_new_tokens)
    parts = TrunkAndHead(model)
    device = parts.head.weight.device
    samples = _blank_samples(len(prompts), params.max_new_tokens, pad_id, value_head, device)
    uniforms = uniform_streams(seeds, params.max_new_tokens).to(device)
    ends = torch.tensor(list(end_ids), dtype=torch.int64, device=device)
    with torch.no_grad(), evaluation_mode(model):
        decoding, hidden = _read_prompts(model, parts, prompts, params, pad_id)
        for step, (rows, running, tokens, logprobs, state) in enumerate(
            _steps(parts, decoding, hidden, uniforms, params, partial(_ended, samples, ends, stop))
        ):
            place = (rows, step)
            samples.response_ids[place] = tokens.where(running, pad_id)
            samples.response_mask[place] = running
            samples.logprobs[place] = logprobs.float().where(running, 0.0)
            if value_head is not None and samples.values is not None:
                samples.values[place] = value_head(state).float().where(running, 0.0)
    return _finished(samples)


def _steps(
    parts: TrunkAndHead,
    decoding: Decoding,
    hidden: Tensor,
    uniforms: Tensor,
    params: SamplingParams,
    ended: Callable[[Tensor, Tensor, Tensor, int], Tensor],
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """For each new token of the rows still in the batch: rows, whether they run, tokens, logprobs, states before it.

    Args:
        ended: of rows, whether they run, tokens and step, once the tokens are in place: which rows end with theirs.
    """
    look_interval = CPU_LOOK_INTERVAL if uniforms.device.type == "cpu" else GPU_LOOK_INTERVAL
    rows = torch.arange(len(uniforms), device=uniforms.device)
    running = torch.ones_like(rows, dtype=torch.bool)
    for step in range(params.max_new_tokens):
        tokens, logprobs = sample_tokens(parts.logits(hidden), uniforms[rows, step], params)
        yield rows, running, tokens, logprobs, hidden
        running = running & ~ended(rows, running, tokens, step)
        if (step + 1) % look_interval == 0:
            live = running.nonzero().squeeze(-1)
            if len(live) == 0:
                return
            if len(live) <= COMPACT_AT * len(rows):
                decoding.keep(live)
                rows, running, tokens = rows[live], running[live], tokens[live]
        if step + 1 < params.max_new_tokens:
            hidden = decoding.advance(tokens)


def _ended(
    samples: Samples,
    ends: Tensor,
    stop: StopCondition | None,
    rows: Tensor,
    running: Tensor,
    tokens: Tensor,
    step: int,
) -> Tensor:
    """Which of the running rows [R] end with the token of this step; noted in `terminated`."""
    ended = running & torch.isin(tokens, ends)
    if stop is not None:
        so_far = samples.response_ids[rows, : step + 1].tolist()
        stopped = [bool(runs and stop(ids)) for runs, ids in zip((running & ~ended).tolist(), so_far, strict=True)]
        ended = ended | torch.tensor(stopped, device=ended.device)
    samples.terminated[rows] |= ended
    return ended


def _check_request(
    model: CausalLM, prompts: Sequence[Sequence[int]], seeds: Sequence[int], max_new_tokens: int
) -> None:
    if not prompts or len(seeds) != len(prompts):
        raise DataError(
            f"Found {len(prompts)} prompts and {len(seeds)} seeds. Expected at least one prompt, a seed each."
        )
    context, vocab_size = context_length(model), vocabulary_size(model)
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(f"Prompt {row} has no token. Expected at least one; start it with a BOS token or text.")
        if context is not None and len(prompt) + max_new_tokens > context:
            raise DataError(
                f"Prompt {row}: {len(prompt)} tokens and {max_new_tokens} new ones exceed the model's context of "
                f"{context}. Shorten the prompt, or ask for fewer new ones."
            )
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise DataError(
                f"Prompt {row}: found ids from {min(prompt)} to {max(prompt)}, expected 0 to {vocab_size - 1}. "
                "Use the model's own tokenizer."
            )


def _blank_samples(
    count: int, max_new_tokens: int, pad_id: int, value_head: nn.Module | None, device: torch.device
) -> Samples:
    shape = (count, max_new_tokens)
    return Samples(
        response_ids=torch.full(shape, pad_id, device=device),
        response_mask=torch.zeros(shape, dtype=torch.bool, device=device),
        logprobs=torch.zeros(shape, device=device),
        values=None if value_head is None else torch.zeros(shape, device=device),
        terminated=torch.zeros(count, dtype=torch.bool, device=device),
    )


def _read_prompts(
    model: CausalLM, parts: TrunkAndHead, prompts: Sequence[Sequence[int]], params: SamplingParams, pad_id: int
) -> tuple[Decoding, Tensor]:
    """Decoding that has read each different prompt once, and the hidden state [B, H] of each prompt's last token."""
    places: dict[tuple[int, ...], int] = {}
    place_of = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    device = parts.head.weight.device
    ids, mask = left_pad(list(places), pad_id)
    decoding = decoding_for(model)(parts, ids.shape[1] + params.max_new_tokens)
    hidden = decoding.start(ids.to(device), mask.to(device))
    if len(places) < len(prompts):
        repeated = torch.tensor(place_of, device=device)
        decoding.keep(repeated)
        hidden = hidden[repeated]
    return decoding, hidden


def _finished(samples: Samples) -> Samples:
    """Without the columns that no response reached.

    Raises:
        TrainingDiverged: a log-probability is not finite.
    """
    if not bool(samples.logprobs.isfinite().all()):
        row = int((~samples.logprobs.isfinite()).any(dim=1).nonzero()[0])
        raise TrainingDiverged(
            f"The log-probabilities for prompt {row} are not finite, expected numbers: the model's weights or "
            "activations overflowed. Go back to an earlier checkpoint."
        )
    length = int(samples.response_mask.sum(dim=1).max())
    return replace(
        samples,
        response_ids=samples.response_ids[:, :length],
        response_mask=samples.response_mask[:, :length],
        logprobs=samples.logprobs[:, :length],
        values=None if samples.values is None else samples.values[:, :length],
    )
