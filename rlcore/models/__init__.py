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
from rlcore.models.checks import require_arguments, require_tokenizer, require_trainable
from rlcore.models.loading import (
    ADAPTER_FOLDER,
    choose_device,
    load_causal_lm,
    load_tokenizer,
    save_causal_lm,
    seeded,
)
from rlcore.models.policy import (
    PPOModel,
    ResponseOutputs,
    ValueHead,
    language_model_of,
    sampled_logprobs,
    sampled_logprobs_and_detached_entropy,
    value_head_of,
)
from rlcore.models.references import add_lora, frozen_copy, frozen_weights, reference_of

__all__ = [
    "ADAPTER_FOLDER",
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
    "require_arguments",
    "require_same_vocabulary",
    "require_separable",
    "require_tokenizer",
    "require_trainable",
    "sampled_logprobs",
    "sampled_logprobs_and_detached_entropy",
    "save_causal_lm",
    "seeded",
    "value_head_of",
    "vocabulary_size",
    "without_wrapper",
]
