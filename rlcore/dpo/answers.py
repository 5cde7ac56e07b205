"""Answers of the policy to validation prompts, for people to read and for checkers that do not train."""

from itertools import chain
from typing import Any, cast

from torch import nn

from rlcore.configs import PreferenceConfig
from rlcore.dpo.dataset import PreferenceDataset, length_limit
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, in_first_process, in_shares
from rlcore.models import CausalLM
from rlcore.results import SampleSink, ignore_samples
from rlcore.sampling import SamplingParams, generate
from rlcore.streams import stream_seed


def hand_over_answers(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    dataset: PreferenceDataset | None,
    config: PreferenceConfig,
    step: int,
    on_samples: SampleSink,
) -> None:
    """Sample answers to up to config.eval_prompts prompts and give them to the first process's on_samples.

    Args:
        client: holds the policy; several processes share the prompts.
        chat: format of the policy's tokenizer.
        dataset: see sampled_answers; None has no prompts.
        config: eval_prompts, max_length and seed.
        step: optimiser steps so far.
        on_samples: nothing is sampled where it ignores what it gets.
    """
    if dataset is None or not config.eval_prompts:
        return
    # The first process decides, or one with another sink would wait for answers that the others do not sample.
    if in_first_process(client, lambda: on_samples is ignore_samples):
        return
    rows = sampled_answers(
        client,
        chat,
        dataset,
        max_prompts=config.eval_prompts,
        max_length=length_limit(cast(CausalLM, client.model), config.max_length),
        seed=config.seed,
    )
    if client.processes.is_first:
        on_samples(step, rows)


def sampled_answers(
    client: AsyncTrainingClient,
    chat: ChatFormat,
    dataset: PreferenceDataset,
    *,
    max_prompts: int,
    max_length: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One answer, sampled at temperature 1, to each of the first distinct prompts: prompt, response, finished.

    Args:
        client: holds the policy; several processes share the prompts.
        chat: format of the policy's tokenizer.
        dataset: its prompts are answered.
        max_prompts: answers at most, at least 1.
        max_length: longest prompt plus the longest answer, in tokens.
        seed: equal seeds draw from equal random streams, whatever the policy has become.
    """
    first = {tuple(dataset.prompt_ids(index)): index for index in reversed(range(len(dataset)))}
    indices = sorted(first.values())[:max_prompts]
    longest = max(len(dataset.prompt_ids(index)) for index in indices)
    params = SamplingParams(max_new_tokens=max_length - longest, temperature=1.0, top_k=0, top_p=1.0)

    def answer(model: nn.Module, numbers: list[int]) -> list[dict[str, Any]]:
        rows = [indices[number] for number in numbers]
        samples = generate(
            cast(CausalLM, model),
            [dataset.prompt_ids(row) for row in rows],
            params,
            seeds=[stream_seed(seed, "validation", number) for number in numbers],
            end_ids=[chat.end_id],
            pad_id=chat.pad_id,
        )
        answers = zip(rows, samples.response_lists(), samples.terminated.tolist(), strict=True)
        return [
            {"prompt": dataset.prompts[row], "response": chat.decode_response(response_ids), "finished": finished}
            for row, response_ids, finished in answers
        ]

    return in_shares(client, len(indices), lambda numbers: list(chain(*client.evaluate_in_parts(numbers, answer))))
