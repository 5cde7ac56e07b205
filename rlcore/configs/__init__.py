"""One frozen class per stage: the only place where a setting has a name, a type, a default, bounds and a meaning.

`params.yaml`, the form of the Prefect deployment and the command line flags derive from these classes. Unknown keys
fail. Importing this package loads neither torch nor transformers.
"""

from rlcore.configs.base import LoraConfig, StageConfig
from rlcore.configs.pairs import DPOConfig, ORPOConfig, PreferenceConfig
from rlcore.configs.pipeline import (
    DemoDataConfig,
    EvaluateConfig,
    GateConfig,
    RegisterConfig,
    ResourcesConfig,
    StageResources,
)
from rlcore.configs.practices import PracticeName, PracticesConfig, Silenced
from rlcore.configs.recommended import Recommended, recommended_ranges
from rlcore.configs.reward import RewardModelConfig
from rlcore.configs.rollout import GRPOConfig, PPOConfig, RolloutConfig
from rlcore.configs.sft import ScratchModelConfig, SFTConfig
from rlcore.configs.validation import ValidateConfig, ValidationRules

__all__ = [
    "DPOConfig",
    "DemoDataConfig",
    "EvaluateConfig",
    "GRPOConfig",
    "GateConfig",
    "LoraConfig",
    "ORPOConfig",
    "PPOConfig",
    "PracticeName",
    "PracticesConfig",
    "PreferenceConfig",
    "Recommended",
    "RegisterConfig",
    "ResourcesConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "SFTConfig",
    "ScratchModelConfig",
    "Silenced",
    "StageConfig",
    "StageResources",
    "ValidateConfig",
    "ValidationRules",
    "recommended_ranges",
]
