"""Reward models on preference pairs: Bradley-Terry loss on the body of any decoder or encoder.

Sources: Bradley & Terry 1952 (the loss); Ziegler et al. 2019, Ouyang et al. 2022 (rewards for language models).
"""

from rlcore.configs import RewardModelConfig
from rlcore.reward.files import load_reward_model, save_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.source import RewardModelSource
from rlcore.reward.training import train

__all__ = [
    "RewardModel",
    "RewardModelConfig",
    "RewardModelSource",
    "load_reward_model",
    "save_reward_model",
    "train",
]
