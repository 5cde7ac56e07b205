"""What a trainer on sampled responses is told by its caller, checked before anything is sampled."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from rlcore.configs import RolloutConfig
from rlcore.errors import ConfigError
from rlcore.models import require_arguments
from rlcore.rollout.reward_sources import MAX_SCORE
from rlcore.sampling import SamplingParams


def require_settings(
    config: RolloutConfig, expected: type[RolloutConfig], tokenizer: object | None, **sinks: Callable[..., Any]
) -> None:
    """As require_arguments; and the score of a cut response is one that a reward source might give.

    Raises:
        ConfigError: see there, or missing_eos_score is beyond MAX_SCORE.
    """
    require_arguments(config, expected, tokenizer, **sinks)
    score = config.missing_eos_score
    if score is not None and abs(score) > MAX_SCORE:
        raise ConfigError(
            f"missing_eos_score={score!r}: expected at most {MAX_SCORE:g} either way, as of other scores."
        )


def iteration_count(config: RolloutConfig, num_iterations: int | None) -> int:
    """Iterations of the whole run: num_iterations, or the config's when None.

    Raises:
        ConfigError: no whole number, or a negative one.
    """
    total = config.num_iterations if num_iterations is None else num_iterations
    if isinstance(total, bool) or not isinstance(total, Integral) or total < 0:
        raise ConfigError(f"num_iterations={total!r}: expected a whole number of at least 0. Pass one, or None.")
    return int(total)


def sampling_params(configured: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """The configured settings with those that were given, which are not None, in their place.

    Raises:
        ConfigError: one is out of range.
    """
    return replace(configured, **{name: value for name, value in given.items() if value is not None})
