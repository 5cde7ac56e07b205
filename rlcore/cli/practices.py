"""Good practice in a training from flags: settings, and what the named folders tell, are judged at the start."""

import logging

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.readers import readers_of
from rlcore.cli.rows import has_validation
from rlcore.cli.stages import STAGE_FIELDS, stage_config
from rlcore.configs import PracticesConfig, recommended_ranges
from rlcore.practices import (
    Facts,
    FullTraining,
    InRange,
    Names,
    findings,
    is_fine_tuned,
    parameter_count,
    raise_refusals,
    recorded_accuracy,
)

logger = logging.getLogger(__name__)


def check_practices(params: LLMTrainingParams, *, is_measured: bool) -> None:
    """Warn of what is not good practice.

    Args:
        params: the settings.
        is_measured: whether validation rows have a use.

    Raises:
        ConfigError: a practice refuses, or a value is out of the trainer's range.
    """
    found = findings(_facts(params, is_measured), PracticesConfig(silence=params.silence))
    raise_refusals(found)
    for finding in found:
        logger.warning("%s", finding)


def _facts(params: LLMTrainingParams, is_measured: bool) -> Facts:
    names = {target: name for name, target in STAGE_FIELDS[params.stage].items()}
    reward_model = params.rl_reward_model_path
    is_full = not params.peft and params.epochs > 0
    brings_none = params.rl_env_class is not None or params.rl_env_type == "preference_comparison"
    is_unmeasured = not brings_none and not (is_measured and has_validation(params.data_path, params.valid_split))
    measuring = "name them with valid_split" if params.eval_strategy == "epoch" else "set eval_strategy='epoch'"
    return Facts(
        trainer=params.stage,
        # How many rows there are decides about steps alone.
        config=stage_config(params, row_count=1),
        names=Names(names.get, "silence={}", measuring),
        ranges=tuple(
            InRange(name, getattr(params, name), recommended)
            for name, recommended in recommended_ranges(LLMTrainingParams)
            if params.stage in readers_of(name)
        ),
        is_fine_tuned=is_fine_tuned(params.model),
        full_trainings=(FullTraining("peft", params.model, parameter_count(params.model)),) if is_full else (),
        validation_rows=0 if is_unmeasured else None,
        evaluations=0 if is_unmeasured else None,
        reward_model=reward_model,
        reward_accuracy=None if reward_model is None else recorded_accuracy(reward_model),
    )
