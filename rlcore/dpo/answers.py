"""Answers of the policy to validation prompts, for people to read and for checkers that do not train."""

from functools import partial
from typing import Any, cast

from torch import nn

from rlcore.dpo.dataset import PreferenceDataset
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import CausalLM
from rlcore.sampling import Samples, SamplingParams, generate
from rlcore.streams import stream_seed


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
        client: holds the policy.
        chat: format of the policy's tokenizer.
        dataset: its prompts are answered.
        max_prompts: answers at most, at least 1.
        max_length: longest prompt plus the longest answer, in tokens.
        seed: equal seeds draw from equal random streams, whatever the policy has become.
    """
    first = {tuple(dataset.prompt_ids(index)): index for index in reversed(range(len(dataset)))}
    indices = sorted(first.values())[:max_prompts]
    prompts = [dataset.prompt_ids(index) for index in indices]
    params = SamplingParams(max_new_tokens=max_length - max(map(len, prompts)), temperature=1.0, top_k=0, top_p=1.0)
    samples = client.evaluate(
        partial(
            _sample,
            prompts=prompts,
            params=params,
            seeds=[stream_seed(seed, "validation", row) for row in range(len(prompts))],
            chat=chat,
        )
    ).result()
    return [
        {
            "prompt": dataset.prompts[index],
            "response": chat.decode_response(response_ids),
            "finished": finished,
        }
        for index, response_ids, finished in zip(
            indices, samples.response_lists(), samples.terminated.tolist(), strict=True
        )
    ]


def _sample(
    model: nn.Module, prompts: list[list[int]], params: SamplingParams, seeds: list[int], chat: ChatFormat
) -> Samples:
    return generate(cast(CausalLM, model), prompts, params, seeds=seeds, end_ids=[chat.end_id], pad_id=chat.pad_id)
