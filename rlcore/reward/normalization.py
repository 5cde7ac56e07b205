"""Rewards in units of the reference model: mean 0 and deviation 1 on its own responses."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.models import CausalLM, context_length, load_causal_lm, load_tokenizer
from rlcore.reward.model import RewardModel
from rlcore.reward.source import RewardModelSource
from rlcore.sampling import SamplingParams, generate
from rlcore.streams import permutation, stream_seed

SAMPLED_AT_ONCE = 64

logger = logging.getLogger(__name__)


def normalize_rewards(
    model: RewardModel,
    tokenizer: PreTrainedTokenizerBase,
    reference: str | Path | CausalLM,
    prompts: list[Prompt],
    config: RewardModelConfig,
) -> list[dict[str, Any]]:
    """Set `reward_shift` and `reward_scale` so that responses of the reference score mean 0 and deviation 1.

    `config.reference_samples` responses are sampled at temperature 1 to prompts in a random order, each used again only
    when all have been used. The deviation is that of the population.

    Args:
        model: changed in place.
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
    responses = _sample(language_model, ChatFormat(reference_tokenizer), chosen, config)
    model.reward_shift.zero_()
    model.reward_scale.fill_(1.0)
    source = RewardModelSource(model, tokenizer)
    raw = torch.tensor(source(chosen, responses), dtype=torch.float64)
    mean, deviation = raw.mean(), raw.std(unbiased=False)
    if not deviation > 0:
        raise DataError(
            f"All {len(chosen)} responses of the reference score {mean.item():.6g}; expected them to differ. "
            "Train the reward model longer, or set reference_samples to 0."
        )
    model.reward_shift.copy_(mean)
    model.reward_scale.copy_(deviation)
    logger.info("Rewards shifted by %.6g and scaled by %.6g.", mean.item(), deviation.item())
    scores = ((raw - mean) / deviation).tolist()
    return [
        {"prompt": prompt, "response": response, "score": score}
        for prompt, response, score in zip(chosen, responses, scores, strict=True)
    ]


def _sample(language_model: CausalLM, chat: ChatFormat, prompts: list[Prompt], config: RewardModelConfig) -> list[str]:
    context = context_length(language_model)
    limit = config.max_length if context is None else context - config.reference_max_new_tokens
    if limit < 1:
        raise ConfigError(
            f"reference_max_new_tokens={config.reference_max_new_tokens} leaves no room for a prompt: "
            f"the reference reads {context} tokens. Lower it."
        )
    ids = [chat.cut_prompt(chat.encode_prompt(prompt), limit) for prompt in prompts]
    params = SamplingParams(max_new_tokens=config.reference_max_new_tokens, temperature=1.0)
    responses: list[str] = []
    for start in range(0, len(ids), SAMPLED_AT_ONCE):
        batch = ids[start : start + SAMPLED_AT_ONCE]
        seeds = [stream_seed(config.seed, "reference", start + row) for row in range(len(batch))]
        samples = generate(language_model, batch, params, seeds=seeds, end_ids=[chat.end_id], pad_id=chat.pad_id)
        responses += map(chat.decode_response, samples.response_lists())
    return responses
