"""Proximal policy optimisation for causal language models: critic on the shared trunk, adaptive KL, exact resume.

Sources: Schulman et al. 2017 (PPO), Schulman et al. 2016 (GAE), Ziegler et al. 2019 (adaptive KL), Ouyang et al. 2022
(RLHF).
"""

from rlcore.configs import PPOConfig
from rlcore.kl_control import AdaptiveKLController
from rlcore.models import PPOModel, ValueHead
from rlcore.ppo.trainer import PPOTrainer, train

__all__ = ["AdaptiveKLController", "PPOConfig", "PPOModel", "PPOTrainer", "ValueHead", "train"]
