"""Rollouts written down by hand."""

from collections.abc import Sequence
from typing import Any

import torch

from rlcore.rollout import EncodedPrompt, MeasuredResponse, Response, Rollout
from rlcore.rollout.collection import rollout_of

PAD = 0


def measured(
    logprobs: Sequence[float],
    ref_logprobs: Sequence[float],
    *,
    score: float = 0.0,
    values: Sequence[float] | None = None,
    sampled: Sequence[bool] | None = None,
    **other: Any,
) -> MeasuredResponse:
    """A response of as many tokens as there are log-probabilities. `other` goes to Response and MeasuredResponse."""
    count = len(logprobs)
    response = Response(
        text=other.pop("text", f"{count} tokens"),
        ids=list(range(5, 5 + count)),
        sampled=[True] * count if sampled is None else list(sampled),
        logprobs=torch.tensor(logprobs),
        values=torch.tensor([0.0] * count if values is None else values),
        terminated=other.pop("terminated", True),
    )
    return MeasuredResponse(
        response, torch.tensor(ref_logprobs), other.pop("bootstrap_value", 0.0), score, other.pop("reward_parts", {})
    )


def rollout(*rows: MeasuredResponse) -> Rollout:
    """The rows as a rollout, each behind a prompt of its own with 1, 2, ... tokens."""
    prompts = [EncodedPrompt(f"p{row}", [4] * (row + 1), {"row": row}, f"p{row}") for row in range(len(rows))]
    seconds = {"sampling": 0.5, "reference": 0.25, "reward": 0.125}
    return rollout_of(prompts, range(len(rows)), rows, pad_id=PAD, device=torch.device("cpu"), seconds=seconds)
