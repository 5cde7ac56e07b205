"""Causal language models as policy, critic and reference: loading, value head, log-probabilities, adapters, saving."""

from rlcore.models.causal_lm import (
    CausalLM,
    TrunkAndHead,
    context_length,
    evaluation_mode,
    require_same_vocabulary,
    require_separable,
    vocabulary_size,
    without_wrapper,
)
from rlcore.models.loading import choose_device, load_causal_lm, load_tokenizer, save_causal_lm, seeded
from rlcore.models.policy import (
    PPOModel,
    ResponseOutputs,
    ValueHead,
    language_model_of,
    sampled_logprobs,
    sampled_logprobs_and_detached_entropy,
    sampled_logprobs_and_entropy,
    value_head_of,
)
from rlcore.models.references import add_lora, frozen_copy, frozen_weights, reference_of

__all__ = [
    "CausalLM",
    "PPOModel",
    "ResponseOutputs",
    "TrunkAndHead",
    "ValueHead",
    "add_lora",
    "choose_device",
    "context_length",
    "evaluation_mode",
    "frozen_copy",
    "frozen_weights",
    "language_model_of",
    "load_causal_lm",
    "load_tokenizer",
    "reference_of",
    "require_same_vocabulary",
    "require_separable",
    "sampled_logprobs",
    "sampled_logprobs_and_detached_entropy",
    "sampled_logprobs_and_entropy",
    "save_causal_lm",
    "seeded",
    "value_head_of",
    "vocabulary_size",
    "without_wrapper",
]
