"""Reward models: Bradley-Terry loss on preference pairs, or several objectives, on any decoder or encoder.

Sources: Bradley & Terry 1952 (the loss); Ziegler et al. 2019, Ouyang et al. 2022 (rewards for language models).
"""

from rlcore.configs import RewardModelConfig
from rlcore.reward.classifier import ClassifierSource, reward_model_source
from rlcore.reward.files import load_reward_model, save_reward_file, save_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.multi_objective import MultiObjectiveRewardModel
from rlcore.reward.pairwise import PairwiseRewardModel
from rlcore.reward.source import RewardModelSource
from rlcore.reward.trainer import RewardModelTrainer
from rlcore.reward.training import train

__all__ = [
    "ClassifierSource",
    "MultiObjectiveRewardModel",
    "PairwiseRewardModel",
    "RewardModel",
    "RewardModelConfig",
    "RewardModelSource",
    "RewardModelTrainer",
    "load_reward_model",
    "reward_model_source",
    "save_reward_file",
    "save_reward_model",
    "train",
]
