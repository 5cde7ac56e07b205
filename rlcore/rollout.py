"""Sampling responses and judging them: the half of an iteration that PPO shares with its critic-free relatives.

Everything random is keyed by (seed, purpose, iteration, row), so a resumed run draws what the uninterrupted one would
have drawn, and a response does not depend on which others are sampled beside it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlcore.batches import Sequences
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.functional.kl import k1
from rlcore.models import PPOModel
from rlcore.results import RewardSource
from rlcore.reward_functions import checked_scores
from rlcore.sampling import Samples, SamplingParams, generate
from rlcore.streams import permutation


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready to be sampled from: its text, its tokens and the other columns of its row."""

    text: str
    ids: list[int]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Rollout:
    """Responses of one iteration and everything that stays fixed while the policy learns from them.

    Attributes:
        prompts, responses: texts, B of each.
        sequences: tokens and masks.
        old_logprobs, ref_logprobs: [B, T], nats at the sampling temperature; 0 on padding.
        old_values: [B, T], critic before each token, reward units; 0 on padding.
        bootstrap_values: [B], critic after the last token where the response was cut, else 0.
        scores: [B], reward units.
        terminated, truncated: bool [B].
        seconds: wall time of each part.
    """

    prompts: list[EncodedPrompt]
    responses: list[str]
    sequences: Sequences
    old_logprobs: Tensor
    ref_logprobs: Tensor
    old_values: Tensor
    bootstrap_values: Tensor
    scores: Tensor
    terminated: Tensor
    truncated: Tensor
    seconds: Mapping[str, float]

    @property
    def response_mask(self) -> Tensor:
        """bool [B, T], True on sampled tokens, EOS included."""
        return self.sequences.response_mask

    @property
    def kl(self) -> Tensor:
        """[B, T], k1 estimate of KL(policy || reference) in nats per token; 0 on padding."""
        return k1(self.old_logprobs, self.ref_logprobs).where(self.response_mask, 0.0)

    @property
    def token_count(self) -> int:
        """Response tokens of all rows."""
        return int(self.response_mask.sum())


def encode_prompts(rows: Sequence[str | Mapping[str, Any]], chat: ChatFormat, max_length: int) -> list[EncodedPrompt]:
    """Tokenise prompts once. A prompt of more than max_length tokens loses its beginning, a leading BOS stays.

    Args:
        rows: texts, or mappings with a string `prompt`; their other keys become metadata.

    Raises:
        DataError: there is no row, a row has no `prompt`, or a prompt is empty.
    """
    if isinstance(rows, str):
        raise DataError(f"Found one text, {rows[:60]!r}, expected a list of prompts. Put it in a list.")
    if not len(rows):
        raise DataError("Found 0 prompts, expected at least one. Pass the prompts to train on.")
    return [_encode_prompt(index, row, chat, max_length) for index, row in enumerate(rows)]


def _encode_prompt(index: int, row: str | Mapping[str, Any], chat: ChatFormat, max_length: int) -> EncodedPrompt:
    if not isinstance(row, str | Mapping):
        raise DataError(f"Prompt {index}: found {row!r}, expected a text or a mapping with `prompt`. Drop or mend it.")
    columns = {"prompt": row} if isinstance(row, str) else dict(row)
    text = columns.pop("prompt", None)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"Prompt {index}: found {text!r}, expected a text that is not empty. Drop or mend that row.")
    return EncodedPrompt(text, chat.cut_prompt(chat.encode_prompt(text), max_length), columns)


def choose_prompts(count: int, batch_size: int, iteration: int, seed: int) -> list[int]:
    """Indices of the prompts of one iteration, numbered from 0: one seeded permutation of all prompts after another."""
    chosen: list[int] = []
    position = iteration * batch_size
    while len(chosen) < batch_size:
        epoch, offset = divmod(position, count)
        order = permutation(count, seed, "prompts", epoch)
        taken = order[offset : offset + batch_size - len(chosen)]
        chosen += taken
        position += len(taken)
    return chosen


def collect(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    prompts: list[EncodedPrompt],
    reward: RewardSource,
    params: SamplingParams,
    *,
    seeds: Sequence[int],
    missing_eos_score: float | None,
) -> Rollout:
    """Sample one response for each prompt and measure it under policy, reference, critic and reward source.

    A response cut by the length limit is bootstrapped with the critic, unless missing_eos_score judges the cut: then it
    is an end like any other, with that score.

    Raises:
        DataError: the reward source returned a wrong count, or a score that is not a finite number.
    """
    clock = time.perf_counter()
    samples = client.evaluate(lambda model: _sample(model, chat, prompts, params, seeds)).result()
    sequences = samples.sequences(chat.pad_id)
    sampled = time.perf_counter()
    ref_logprobs = client.evaluate(
        lambda model: policy_of(model).response_outputs(sequences, params.temperature).logprobs, use_reference=True
    ).result()
    bootstrap_values = torch.zeros(len(prompts))
    if missing_eos_score is None and samples.truncated.any():
        after_last = client.evaluate(lambda model: policy_of(model).bootstrap_values(sequences)).result()
        bootstrap_values = after_last.where(samples.truncated, 0.0)
    measured = time.perf_counter()
    responses = [chat.decode_response(ids) for ids in samples.response_lists()]
    scores = score_responses(reward, prompts, responses).to(ref_logprobs.device)
    if missing_eos_score is not None:
        scores = scores.masked_fill(samples.truncated, missing_eos_score)
    scored = time.perf_counter()
    mask = sequences.response_mask
    return Rollout(
        prompts=prompts,
        responses=responses,
        sequences=sequences,
        old_logprobs=samples.logprobs.where(mask, 0.0),
        ref_logprobs=ref_logprobs.where(mask, 0.0),
        old_values=cast(Tensor, samples.values).where(mask, 0.0),
        bootstrap_values=bootstrap_values,
        scores=scores,
        terminated=samples.terminated,
        truncated=samples.truncated,
        seconds={"sampling": sampled - clock, "reference": measured - sampled, "reward": scored - measured},
    )


def _sample(
    model: nn.Module, chat: ChatFormat, prompts: list[EncodedPrompt], params: SamplingParams, seeds: Sequence[int]
) -> Samples:
    policy = policy_of(model)
    return generate(
        policy.base_model,
        [prompt.ids for prompt in prompts],
        params,
        seeds=seeds,
        end_ids=[chat.end_id],
        pad_id=chat.pad_id,
        value_head=policy.value_head,
    )


def policy_of(model: nn.Module) -> PPOModel:
    """The policy with its critic that a training client was given."""
    return cast(PPOModel, model)


def score_responses(reward: RewardSource, prompts: list[EncodedPrompt], responses: list[str]) -> Tensor:
    """Ask the reward source and check what it says: float32 [B], one finite score for each response.

    Raises:
        DataError: wrong count, or a score that is no finite number; names the source and the first faulty row.
    """
    name = getattr(reward, "__name__", type(reward).__name__)
    scores = reward([prompt.text for prompt in prompts], responses, [dict(prompt.metadata) for prompt in prompts])
    return torch.tensor(checked_scores(scores, len(responses), name), dtype=torch.float32)


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Score, KL and length figures of a rollout, under the names of the metric page."""
    lengths = rollout.response_mask.sum(1).float()
    kl = rollout.kl
    return {
        "reward/score_mean": rollout.scores.mean().item(),
        "reward/score_std": rollout.scores.std(unbiased=False).item(),
        "kl/ref_token_mean": (kl.sum() / rollout.token_count).item(),
        "kl/ref_sequence_mean": kl.sum(1).mean().item(),
        "response/length_mean": lengths.mean().item(),
        "response/eos_fraction": rollout.terminated.float().mean().item(),
        "response/distinct_count": float(len(set(rollout.responses))),
        "throughput/tokens_per_s": rollout.token_count / max(rollout.seconds["sampling"], 1e-9),
        **{f"time/{part}_s": seconds for part, seconds in rollout.seconds.items()},
    }


def sample_rows(rollout: Rollout) -> list[dict[str, Any]]:
    """The responses of a rollout, to be read: prompt, response, whether it ended by itself, score, KL in nats."""
    return [
        {"prompt": prompt.text, "response": response, "finished": finished, "score": score, "kl": kl, **prompt.metadata}
        for prompt, response, finished, score, kl in zip(
            rollout.prompts,
            rollout.responses,
            rollout.terminated.tolist(),
            rollout.scores.tolist(),
            rollout.kl.sum(1).tolist(),
            strict=True,
        )
    ]
