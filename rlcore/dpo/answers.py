"""Answers of the policy to validation prompts, for people to read and for checkers that do not train."""

from itertools import chain
from typing import Any, cast

from torch import nn

from rlcore.dpo.dataset import PreferenceDataset
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import CausalLM
from rlcore.pair_training import mapped
from rlcore.sampling import SamplingParams, generate
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

    return mapped(
        client,
        range(len(indices)),
        lambda numbers: list(chain.from_iterable(client.evaluate_in_parts(numbers, answer))),
    )
