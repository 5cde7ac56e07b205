"""A policy whose words are scripted and whose probabilities are a model's own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlcore.batches import join
from rlcore.models import sampled_logprobs
from rlcore.sampling import Samples, SamplingParams

Script = Callable[[list[int]], list[int]]
"""From the tokens of a context to the tokens of the turn that follows, the end token included."""


def scripted_generate(script: Script) -> Callable[..., Samples]:
    """`rlcore.sampling.generate` for a policy that says what the script tells it."""

    def generate(
        model: Any,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        seeds: Sequence[int],
        end_ids: Sequence[int],
        pad_id: int,
    ) -> Samples:
        turns = [script(list(prompt))[: params.max_new_tokens] for prompt in prompts]
        sequences = join(prompts, turns, pad_id)
        return Samples(
            response_ids=sequences.response_ids,
            response_mask=sequences.response_mask,
            logprobs=sampled_logprobs(model, sequences, params.temperature),
            values=None,
            terminated=torch.tensor([turn[-1] in end_ids for turn in turns]),
        )

    return generate
