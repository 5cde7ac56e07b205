"""Environments: text generation, several rewards, preferences, arithmetic, code, and those of one's own."""

from rlcore.environments.base import Observation, RLEnvironment, StepResult, Trajectory
from rlcore.environments.code_execution import CodeResult, passed_tests, run_code_against_tests
from rlcore.environments.code_generation import create_code_generation_env
from rlcore.environments.episode_protocol import EpisodeEnvironment, load_episode_environment
from rlcore.environments.math_problems import create_math_problem_env
from rlcore.environments.multi_objective import MultiObjectiveRewardEnv
from rlcore.environments.named import ENVIRONMENTS, environment_named
from rlcore.environments.preference import PreferenceComparisonEnv, preference_by_score
from rlcore.environments.reward_source import EnvironmentReward
from rlcore.environments.text_generation import TextGenerationEnv
from rlcore.environments.tool_calls import Tools
from rlcore.environments.trajectories import lm_policy, play

__all__ = [
    "ENVIRONMENTS",
    "CodeResult",
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
]
