"""Settings of the checks of good practice."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlcore.configs.base import StageConfig

PracticeName = Literal[
    "sft_before_rl",
    "reward_model_accuracy",
    "kl_limit",
    "recommended_ranges",
    "ppo_learning_rate",
    "small_initial_kl",
    "responses_per_step",
    "kl_on_target",
    "value_warmup",
    "preference_quality",
    "dpo_learning_rate",
    "label_smoothing",
    "frequent_evaluation",
    "balanced_pairs",
    "diverse_prompts",
    "lora_for_large_models",
    "separate_objectives",
]
"""What is checked; `docs/practices.md` says how."""


def _names(value: Any) -> Any:
    """Several names, also from a text with commas between them; each once, in their order."""
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    are_names = isinstance(names, Iterable) and all(isinstance(name, str) for name in names)
    return tuple(dict.fromkeys(names)) if are_names else names


Silenced = Annotated[tuple[PracticeName, ...], BeforeValidator(_names)]
"""Names of practices that are not checked."""


class PracticesConfig(StageConfig):
    """Good practices that are checked before and between the stages. The flow reads them; no stage depends on them."""

    silence: Silenced = ()
    """Practices that are not checked, by name."""
    min_rm_accuracy: float | None = Field(0.6, ge=0, le=1)
    """Least accuracy of the reward model: on validation pairs before ppo or grpo learns from it, and on held-out pairs
    at the gate; null checks neither."""
    max_initial_kl_coef: float = Field(0.2, ge=0)
    """Largest initial KL coefficient of ppo that counts as small, in reward units per nat."""
    kl_target_factor: float = Field(2.0, gt=1)
    """How many times above or below kl_target the KL of ppo may end."""
    min_responses_per_step: int = Field(8, ge=1)
    """Least sampled responses whose gradients make one optimiser step."""
    min_evaluations: int = Field(2, ge=0)
    """Least evaluations on the validation split in one training of the policy."""
    max_poor_pairs: float = Field(0.2, ge=0, le=1)
    """Largest share of preference pairs that were dropped, repeat another pair or contradict one."""
    max_contradictions: float = Field(0.02, ge=0, le=1)
    """Share of contradicting pairs above which dpo needs label smoothing."""
    max_longer_share: float = Field(0.75, ge=0.5, le=1)
    """Largest share of pairs whose chosen response is the longer one; of those where it is the shorter one, too."""
    min_distinct_prompts: int = Field(100, ge=1)
    """Least different prompts among the preference pairs, and among the prompts where the policy samples."""
    lora_above_parameters: float = Field(1e9, gt=0)
    """Weights above which a model is large: adapters are advised."""
