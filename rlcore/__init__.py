"""Preference fine-tuning of language models: PPO, DPO, reward models, environments, sampling, checkpoints.

Names load on first use, so that `from rlcore import PPOConfig` loads no torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "rlcore.backends": ("trainer_for",),
    "rlcore.configs": ("DPOConfig", "PPOConfig", "RewardModelConfig", "SFTConfig"),
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
        "Trajectory",
        "create_code_generation_env",
        "create_math_problem_env",
        "environment_named",
        "load_episode_environment",
        "passed_tests",
        "play",
        "preference_by_score",
        "run_code_against_tests",
    ),
    "rlcore.errors": ("CheckpointError", "ConfigError", "DataError", "RLCoreError", "TrainingDiverged"),
    "rlcore.forward_backward": (
        "AsyncTrainingClient",
        "AsyncTrainingFuture",
        "ForwardBackwardOutput",
        "ForwardBackwardPipeline",
        "OptimStepOutput",
    ),
    "rlcore.kl_control": ("AdaptiveKLController",),
    "rlcore.models": ("PPOModel", "ValueHead"),
    "rlcore.ppo": ("PPOTrainer",),
    "rlcore.results": ("RewardSource", "TrainResult"),
    "rlcore.reward": ("RewardModel", "RewardModelSource"),
    "rlcore.reward_functions": (
        "REWARD_FUNCTIONS",
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
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
