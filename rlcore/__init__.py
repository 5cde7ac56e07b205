"""Preference fine-tuning of language models: PPO, GRPO, DPO, reward models, environments, sampling, checkpoints.

Names load on first use, so that `from rlcore import PPOConfig` loads no torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "rlcore.backends": ("trainer_for",),
    "rlcore.configs": ("DPOConfig", "GRPOConfig", "ORPOConfig", "PPOConfig", "RewardModelConfig", "SFTConfig"),
    "rlcore.dpo": ("DPOTrainer", "PreferenceDataset"),
    "rlcore.environments": (
        "CodeResult",
        "ENVIRONMENTS",
        "EnvironmentReward",
        "EpisodeEnvironment",
        "MultiObjectiveRewardEnv",
        "Observation",
        "PreferenceComparisonEnv",
        "RLEnvironment",
        "StepResult",
        "TextGenerationEnv",
        "Tools",
        "Trajectory",
        "create_code_generation_env",
        "create_math_problem_env",
        "environment_named",
        "lm_policy",
        "load_episode_environment",
        "passed_tests",
        "play",
        "preference_by_score",
        "run_code_against_tests",
    ),
    "rlcore.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DeviceMemoryError",
        "RLCoreError",
        "TrainingDiverged",
    ),
    "rlcore.forward_backward": (
        "AsyncTrainingClient",
        "AsyncTrainingFuture",
        "ForwardBackwardOutput",
        "ForwardBackwardPipeline",
        "OptimStepOutput",
    ),
    "rlcore.grpo": ("GRPOTrainer",),
    "rlcore.kl_control": ("AdaptiveKLController",),
    "rlcore.models": ("PPOModel", "ValueHead"),
    "rlcore.ppo": ("PPOTrainer",),
    "rlcore.results": ("RewardSource", "TrainResult"),
    "rlcore.reward": (
        "ClassifierSource",
        "MultiObjectiveRewardModel",
        "PairwiseRewardModel",
        "RewardModel",
        "RewardModelSource",
        "RewardModelTrainer",
        "load_reward_model",
        "reward_model_source",
        "save_reward_file",
        "save_reward_model",
    ),
    "rlcore.reward_functions": (
        "REWARD_FUNCTIONS",
        "WeightedSum",
        "answer_value",
        "answers_equal",
        "as_reward_source",
        "checked_number",
        "checked_scores",
        "checked_weights",
        "correctness",
        "formatting_score",
        "imported_object",
        "length_penalty_score",
        "length_score",
        "reward_function_named",
        "states_answer",
        "weighted_sum",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rlcore' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
