"""Direct preference optimisation: a policy from preference pairs, without a reward model and without sampling.

Sources: Rafailov et al. 2023 (the loss); Mitchell 2023 (label smoothing).
"""

from rlcore.configs import DPOConfig
from rlcore.dpo.dataset import PreferenceDataset
from rlcore.dpo.trainer import DPOTrainer, train

__all__ = ["DPOConfig", "DPOTrainer", "PreferenceDataset", "train"]
