"""The one run loop of everything that learns from preference pairs: policies without a reward model, reward models.

Order, optimiser steps, reports, evaluation, best step, checkpoints and exact resume, in one process or several.
"""

from rlcore.pair_training.calibration import calibration_error, calibration_gaps
from rlcore.pair_training.columns import (
    Columns,
    preference_columns,
    preference_splits,
    read_each,
    require_lists,
    require_pairs,
    require_prompt,
    require_splits,
)
from rlcore.pair_training.folder import only_run_of_folder, shared_checkpoint_folder
from rlcore.pair_training.measuring import by_length, evaluate_pairs, measure_pairs
from rlcore.pair_training.objective import PairObjective, PairSums
from rlcore.pair_training.plan import PairPlan
from rlcore.pair_training.run import PairRun

__all__ = [
    "Columns",
    "PairObjective",
    "PairPlan",
    "PairRun",
    "PairSums",
    "by_length",
    "calibration_error",
    "calibration_gaps",
    "evaluate_pairs",
    "measure_pairs",
    "only_run_of_folder",
    "preference_columns",
    "preference_splits",
    "read_each",
    "require_lists",
    "require_pairs",
    "require_prompt",
    "require_splits",
    "shared_checkpoint_folder",
]
