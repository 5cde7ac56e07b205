"""Rewards in units of the reference model: mean 0 and deviation 1 on its own responses."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.forward_backward import AsyncTrainingClient, in_shares
from rlcore.models import CausalLM, context_length, load_causal_lm, load_tokenizer
from rlcore.reward.model import RewardModel
from rlcore.reward.source import RewardModelSource
from rlcore.sampling import SamplingParams, generate
from rlcore.streams import permutation, stream_seed

SAMPLED_AT_ONCE = 64
"""Responses of the reference that are sampled side by side."""

logger = logging.getLogger(__name__)


def normalize_rewards(
    client: AsyncTrainingClient,
    model: RewardModel,
    tokenizer: PreTrainedTokenizerBase,
    reference: str | Path | CausalLM,
    prompts: list[Prompt],
    config: RewardModelConfig,
) -> list[dict[str, Any]]:
    """Set `reward_shift` and `reward_scale` so that responses of the reference score mean 0 and deviation 1.

    `config.reference_samples` responses are sampled at temperature 1 to prompts in a random order, each used again only
    when all have been used. The deviation is that of the population. Several processes share the responses.

    Args:
        client: knows the processes.
        model: changed in place; idle, as the work is done outside the client's queue.
        tokenizer: of the model; also of a reference that is passed as an object.
        reference: causal language model, or its folder.
        prompts: what to respond to.
        config: seed, number and length of the responses.

    Returns:
        Prompt, response and normalised score of every sample.

    Raises:
        DataError: all responses score alike, so nothing can be scaled.
    """
    order = permutation(len(prompts), config.seed, "reference prompts")
    chosen = [prompts[order[row % len(order)]] for row in range(config.reference_samples)]
    reference_tokenizer = load_tokenizer(reference) if isinstance(reference, str | Path) else tokenizer
    language_model = load_causal_lm(reference, device=model.head.weight.device)
    chat = ChatFormat(reference_tokenizer)
    model.reward_shift.zero_()
    model.reward_scale.fill_(1.0)
    source = RewardModelSource(model, tokenizer)

    def sampled_and_scored(own_rows: list[int]) -> list[tuple[str, float]]:
        responses = _sample(language_model, chat, chosen, own_rows, config)
        scores = source([chosen[row] for row in own_rows], responses)
        return list(zip(responses, scores, strict=True))

    samples = in_shares(client, len(chosen), sampled_and_scored)
    raw = torch.tensor([score for _, score in samples], dtype=torch.float64)
    mean, deviation = raw.mean(), raw.std(unbiased=False)
    if not deviation > 0:
        raise DataError(
            f"All {len(chosen)} responses of the reference score {mean.item():.6g}; expected them to differ. "
            "Train the reward model longer, or set reference_samples to 0."
        )
    model.reward_shift.copy_(mean)
    model.reward_scale.copy_(deviation)
    logger.info("Rewards shifted by %.6g and scaled by %.6g.", mean.item(), deviation.item())
    return [
        {"prompt": prompt, "response": response, "score": score}
        for prompt, (response, _), score in zip(chosen, samples, ((raw - mean) / deviation).tolist(), strict=True)
    ]


def _sample(
    language_model: CausalLM, chat: ChatFormat, prompts: list[Prompt], rows: list[int], config: RewardModelConfig
) -> list[str]:
    """One response to each of the prompts at `rows`; the random numbers of a row are its own."""
    context = context_length(language_model)
    limit = config.max_length if context is None else context - config.reference_max_new_tokens
    if limit < 1:
        raise ConfigError(
            f"reference_max_new_tokens={config.reference_max_new_tokens} leaves no room for a prompt: "
            f"the reference reads {context} tokens. Lower it."
        )
    params = SamplingParams(max_new_tokens=config.reference_max_new_tokens, temperature=1.0)
    responses: list[str] = []
    for start in range(0, len(rows), SAMPLED_AT_ONCE):
        batch = rows[start : start + SAMPLED_AT_ONCE]
        ids = [chat.cut_prompt(chat.encode_prompt(prompts[row]), limit) for row in batch]
        seeds = [stream_seed(config.seed, "reference", row) for row in batch]
        samples = generate(language_model, ids, params, seeds=seeds, end_ids=[chat.end_id], pad_id=chat.pad_id)
        responses += map(chat.decode_response, samples.response_lists())
    return responses
