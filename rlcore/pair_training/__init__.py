"""The one run loop of everything that learns from preference pairs: policies without a reward model, reward models.

Order, optimiser steps, reports, evaluation, best step, checkpoints and exact resume, in one process or several.
"""

from rlcore.pair_training.calibration import calibration_error, calibration_gaps
from rlcore.pair_training.columns import preference_columns, require_pairs, require_prompt
from rlcore.pair_training.measuring import by_length, evaluate_pairs, measure_pairs
from rlcore.pair_training.objective import PairObjective, PairSums
from rlcore.pair_training.plan import PairPlan
from rlcore.pair_training.run import PairRun
from rlcore.pair_training.sharing import mapped, on_first, shared_checkpoint_folder

__all__ = [
    "PairObjective",
    "PairPlan",
    "PairRun",
    "PairSums",
    "by_length",
    "calibration_error",
    "calibration_gaps",
    "evaluate_pairs",
    "mapped",
    "measure_pairs",
    "on_first",
    "preference_columns",
    "require_pairs",
    "require_prompt",
    "shared_checkpoint_folder",
]
