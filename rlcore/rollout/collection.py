"""Responses to prompts, sampled and measured: what an iteration learns from.

Everything random is keyed by (seed, purpose, iteration, row), so a resumed run draws what the uninterrupted one would
have drawn, and a response does not depend on which others are sampled beside it. Rows stay apart, on the CPU, until
`rollout_of` makes rectangles of them: so they can come from several parts, turns and processes.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rlcore.batches import Sequences, join
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, in_shares
from rlcore.functional.kl import k1
from rlcore.models import PPOModel, language_model_of, sampled_logprobs, value_head_of
from rlcore.rollout.prompts import EncodedPrompt
from rlcore.sampling import SamplingParams, generate
from rlcore.streams import stream_seed

Respond = Callable[[Sequence[EncodedPrompt], list[int]], Sequence["Response"]]
"""From prompts and the numbers of their rows, which key their random streams, to a response each."""

Score = Callable[[Sequence[EncodedPrompt], Sequence["Response"]], tuple[list[float], dict[str, list[float]]]]
"""From prompts and responses to scores in reward units, and by name the unweighted ones that they are made of."""


@dataclass(frozen=True, eq=False)
class Response:
    """What the policy answered to one prompt: n tokens, those of others among them."""

    text: str
    """What the reward source reads."""
    ids: list[int]
    """n tokens, the end token included."""
    sampled: list[bool]
    """n marks; False on tokens that the policy did not write, such as the result of a tool."""
    logprobs: Tensor
    """float32 [n], nats at the sampling temperature; 0 where not sampled."""
    values: Tensor | None
    """float32 [n], critic before each token, reward units; None without a critic."""
    terminated: bool
    """Ended by the end token; else cut by the length limit."""


@dataclass(frozen=True, eq=False)
class MeasuredResponse:
    """A response and what reference, critic and reward source say about it."""

    response: Response
    ref_logprobs: Tensor
    """float32 [n], nats at the sampling temperature; 0 where not sampled."""
    bootstrap_value: float
    """Critic after the last token where the length limit cut, else 0; reward units."""
    score: float
    """Reward units; NaN where a source that may do so gave none."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted scores of which the score was made, by name."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """Responses of one iteration and everything that stays fixed while the policy learns from them.

    Attributes:
        prompts, responses: B prompts, B texts.
        group_ids: int64 [B], which prompt of the data set a response belongs to.
        sequences: tokens and masks.
        old_logprobs, ref_logprobs: [B, T], nats at the sampling temperature; 0 outside the response mask.
        old_values: [B, T], critic before each token, reward units, 0 outside the response mask; None without a critic.
        bootstrap_values: [B], critic after the last token where the response was cut, else 0.
        scores: [B], reward units.
        reward_parts: by name, the unweighted scores [B] of which `scores` are made; empty for a single source.
        terminated: bool [B], ended by the end token.
        seconds: wall time of each part, in this process.
    """

    prompts: list[EncodedPrompt]
    responses: list[str]
    group_ids: Tensor
    sequences: Sequences
    old_logprobs: Tensor
    ref_logprobs: Tensor
    old_values: Tensor | None
    bootstrap_values: Tensor
    scores: Tensor
    reward_parts: Mapping[str, Tensor]
    terminated: Tensor
    seconds: Mapping[str, float]

    @property
    def response_mask(self) -> Tensor:
        """bool [B, T], True on sampled tokens, EOS included."""
        return self.sequences.response_mask

    @property
    def truncated(self) -> Tensor:
        """bool [B], cut by the length limit."""
        return ~self.terminated

    @property
    def kl(self) -> Tensor:
        """[B, T], k1 estimate of KL(policy || reference) in nats per token; 0 outside the response mask."""
        return k1(self.old_logprobs, self.ref_logprobs).where(self.response_mask, 0.0)

    @property
    def token_count(self) -> int:
        """Sampled tokens of all rows."""
        return int(self.response_mask.sum())

    def __len__(self) -> int:
        return len(self.responses)


class Stopwatch:
    """Wall time of the parts of a rollout.

    Attributes:
        seconds: by part.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """The part that ends here began where the last one ended."""
        now = time.perf_counter()
        self.seconds[part], self._last = now - self._last, now


def collect_rollout(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    prompts: Sequence[EncodedPrompt],
    group_ids: Sequence[int],
    respond: Respond,
    score: Score,
    *,
    temperature: float,
    missing_eos_score: float | None,
    together: Sequence[Hashable] | None,
) -> Rollout:
    """A response to each prompt, measured under policy, reference, critic and reward source.

    Each process takes its share of the rows; the rollout is whole in all of them.

    Args:
        client: of the policy.
        chat: format of the prompts.
        prompts: one for each row.
        group_ids: which prompt of the data set each row answers.
        respond, score: called for the rows of this process.
        temperature: of sampling.
        missing_eos_score: score of a response that the length limit cut; None keeps what `score` said.
        together: for each row what marks those that `score` has to see with it; None where it sees each alone.
    """
    watch = Stopwatch()

    def own(rows: list[int]) -> list[MeasuredResponse]:
        asked = [prompts[row] for row in rows]
        responses = respond(asked, rows)
        watch.lap("sampling")
        return measure_responses(
            client,
            chat,
            asked,
            responses,
            score,
            temperature=temperature,
            missing_eos_score=missing_eos_score,
            watch=watch,
        )

    rows = in_shares(client, len(prompts), own, together)
    return rollout_of(prompts, group_ids, rows, pad_id=chat.pad_id, device=client.device, seconds=watch.seconds)


def row_seeds(seed: int, purpose: tuple[str, int], rows: Sequence[int]) -> list[int]:
    """What seeds the random stream of each row: its number, what is sampled for, and the seed of the run."""
    return [stream_seed(seed, *purpose, row) for row in rows]


def sample_responses(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    seeds: Sequence[int],
) -> list[Response]:
    """One response for each prompt, from the policy as it is, with the values of its critic if it has one.

    Raises:
        DataError: a prompt leaves no room for max_new_tokens.
        TrainingDiverged: the probabilities of the policy are not numbers.
    """

    def sample(model: nn.Module, rows: Sequence[tuple[EncodedPrompt, int]]) -> list[Response]:
        samples = generate(
            language_model_of(model),
            [prompt.ids for prompt, _ in rows],
            params,
            seeds=[seed for _, seed in rows],
            end_ids=[chat.end_id],
            pad_id=chat.pad_id,
            value_head=value_head_of(model),
        )
        ids = samples.response_lists()
        lengths = [len(row) for row in ids]
        values = [None] * len(ids) if samples.values is None else _rows(samples.values, lengths)
        return [
            Response(chat.decode_response(row), row, [True] * len(row), logprobs, own_values, terminated)
            for row, logprobs, own_values, terminated in zip(
                ids, _rows(samples.logprobs, lengths), values, samples.terminated.tolist(), strict=True
            )
        ]

    return list(chain(*client.evaluate_in_parts(list(zip(prompts, seeds, strict=True)), sample)))


def reference_logprobs(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    prompts: Sequence[EncodedPrompt],
    responses: Sequence[Response],
    temperature: float,
) -> list[Tensor]:
    """What the reference says about the tokens of each response: float32 [n], nats at the temperature."""

    def measure(model: nn.Module, rows: Sequence[tuple[EncodedPrompt, Response]]) -> list[Tensor]:
        sequences = _sequences_of(rows, chat.pad_id).to(client.device)
        logprobs = sampled_logprobs(language_model_of(model), sequences, temperature)
        return _rows(logprobs, [len(response.ids) for _, response in rows])

    pairs = list(zip(prompts, responses, strict=True))
    return list(chain(*client.evaluate_in_parts(pairs, measure, use_reference=True)))


def bootstrap_values(
    client: AsyncTrainingClient, chat: ChatFormat, prompts: Sequence[EncodedPrompt], responses: Sequence[Response]
) -> list[float]:
    """What the critic expects after the last token of each response that was cut, in reward units; 0 for the others."""

    def measure(model: nn.Module, rows: Sequence[tuple[EncodedPrompt, Response]]) -> list[float]:
        assert isinstance(model, PPOModel)
        values: list[float] = model.bootstrap_values(_sequences_of(rows, chat.pad_id).to(client.device)).tolist()
        return values

    pairs = list(zip(prompts, responses, strict=True))
    cut = [pair for pair in pairs if not pair[1].terminated and pair[1].values is not None]
    values = chain(*client.evaluate_in_parts(cut, measure))
    return [next(values) if not response.terminated and response.values is not None else 0.0 for response in responses]


def measure_responses(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    prompts: Sequence[EncodedPrompt],
    responses: Sequence[Response],
    score: Score,
    *,
    temperature: float,
    missing_eos_score: float | None,
    watch: Stopwatch,
) -> list[MeasuredResponse]:
    """Responses under reference, critic and reward source.

    A response cut by the length limit is bootstrapped with the critic, unless missing_eos_score judges the cut: then it
    is an end like any other, with that score.
    """
    references = reference_logprobs(client, chat, prompts, responses, temperature)
    judged = missing_eos_score is not None
    expected = [0.0] * len(responses) if judged else bootstrap_values(client, chat, prompts, responses)
    watch.lap("reference")
    scores, parts = score(prompts, responses)
    watch.lap("reward")
    return [
        MeasuredResponse(
            response,
            references[row],
            expected[row],
            scores[row] if missing_eos_score is None or response.terminated else missing_eos_score,
            {name: part[row] for name, part in parts.items()},
        )
        for row, response in enumerate(responses)
    ]


def rollout_of(
    prompts: Sequence[EncodedPrompt],
    group_ids: Sequence[int],
    rows: Sequence[MeasuredResponse],
    *,
    pad_id: int,
    device: torch.device,
    seconds: Mapping[str, float],
) -> Rollout:
    """The rows of an iteration as rectangles on the device where the policy is."""
    responses = [row.response for row in rows]
    values = [response.values for response in responses if response.values is not None]
    return Rollout(
        prompts=list(prompts),
        responses=[response.text for response in responses],
        group_ids=torch.tensor(group_ids, device=device),
        sequences=_sequences_of(list(zip(prompts, responses, strict=True)), pad_id).to(device),
        old_logprobs=pad_sequence([response.logprobs for response in responses], batch_first=True).to(device),
        ref_logprobs=pad_sequence([row.ref_logprobs for row in rows], batch_first=True).to(device),
        old_values=pad_sequence(values, batch_first=True).to(device) if values else None,
        bootstrap_values=torch.tensor([row.bootstrap_value for row in rows], device=device),
        scores=torch.tensor([row.score for row in rows], device=device),
        reward_parts={
            name: torch.tensor([row.reward_parts[name] for row in rows], device=device) for name in rows[0].reward_parts
        },
        terminated=torch.tensor([response.terminated for response in responses], device=device),
        seconds=seconds,
    )


def _rows(padded: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """The first entries of each row, copied to the CPU so that none keeps the rectangle alive."""
    return [row[:length].clone() for row, length in zip(padded.cpu(), lengths, strict=True)]


def _sequences_of(rows: Sequence[tuple[EncodedPrompt, Response]], pad_id: int) -> Sequences:
    return join(
        [prompt.ids for prompt, _ in rows],
        [response.ids for _, response in rows],
        pad_id,
        [response.sampled for _, response in rows],
    )
