"""Policy optimisation without a critic: the other responses to the same prompt are the baseline. Tools, exact resume.

Sources: Shao et al. 2024 (GRPO), Ahmadian et al. 2024 and Kool et al. 2019 (RLOO), Liu et al. 2025 (constant length).
"""

from rlcore.configs import GRPOConfig
from rlcore.grpo.trainer import GRPOTrainer, train

__all__ = ["GRPOConfig", "GRPOTrainer", "train"]
