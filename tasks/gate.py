"""The gate: which conditions a policy must meet before it becomes the challenger."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlcore.configs import GateConfig


@dataclass(frozen=True)
class Reason:
    """One condition and how it came out."""

    rule: str
    """Name of the condition."""
    found: float | None
    """What was measured; None where it is missing or not finite."""
    bound: float
    """What it was compared with."""
    passed: bool
    """Whether the condition is met."""

    def __str__(self) -> str:
        found = "not measured" if self.found is None else f"{self.found:.4g}"
        return f"{self.rule}: {found}, bound {self.bound:.4g}, {'passed' if self.passed else 'refused'}"


@dataclass(frozen=True)
class GateReport:
    """The verdict and every reason for it."""

    passed: bool
    reasons: tuple[Reason, ...]

    @property
    def refusals(self) -> tuple[Reason, ...]:
        """The conditions that were not met."""
        return tuple(reason for reason in self.reasons if not reason.passed)


def decide(config: GateConfig, metrics: Mapping[str, float]) -> GateReport:
    """Judge a policy by the metrics of its evaluation.

    A gain must exceed its bound, so a tie refuses; a budget may be used up. A metric that is missing or not finite does
    not pass. Gains count against the champion where it was measured, else against SFT.

    Args:
        config: the conditions; those that are null are not checked.
        metrics: contents of evaluate.json.

    Returns:
        passed, when all conditions are met, and one reason for each condition.
    """
    reasons = (*_gains(config, metrics), *_budgets(config, metrics))
    return GateReport(all(reason.passed for reason in reasons), reasons)


def _gains(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    against = "gain_over_champion" if any(name.endswith("/champion") for name in metrics) else "gain"
    for key, bound in config.min_gain.items():
        yield _above(f"{key}/{against}", _number(metrics, f"{key}/{against}"), bound)
        yield _above(f"{key}/{against}_low", _number(metrics, f"{key}/{against}_low"), 0.0)


def _budgets(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    length_ratio = _ratio(metrics, "response/length_mean")
    best, published = (_number(metrics, f"validation_gold/{name}") for name in ("best", "published"))
    drop = None if best is None or published is None else best - published
    checks = (
        (_at_most, "kl_sequence", _number(metrics, "kl/ref_sequence_mean"), config.max_kl_sequence),
        (_at_most, "drop_from_best", drop, config.max_drop_from_best),
        (_at_least, "min_length_ratio", length_ratio, config.min_length_ratio),
        (_at_most, "max_length_ratio", length_ratio, config.max_length_ratio),
        (_at_least, "eos_fraction", _number(metrics, "response/eos_fraction/policy"), config.min_eos_fraction),
        (_at_least, "distinct_ratio", _ratio(metrics, "response/distinct_2"), config.min_distinct_ratio),
        (_at_most, "perplexity_ratio", _ratio(metrics, "response/perplexity"), config.max_perplexity_ratio),
        (
            _at_least,
            "reward_model_accuracy",
            _number(metrics, "reward_model/accuracy"),
            config.min_reward_model_accuracy,
        ),
    )
    yield from (check(rule, found, bound) for check, rule, found, bound in checks if bound is not None)


def _above(rule: str, found: float | None, bound: float) -> Reason:
    return Reason(rule, found, bound, found is not None and found > bound)


def _at_least(rule: str, found: float | None, bound: float) -> Reason:
    return Reason(rule, found, bound, found is not None and found >= bound)


def _at_most(rule: str, found: float | None, bound: float) -> Reason:
    return Reason(rule, found, bound, found is not None and found <= bound)


def _number(metrics: Mapping[str, float], name: str) -> float | None:
    value = metrics.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def _ratio(metrics: Mapping[str, float], name: str) -> float | None:
    """The policy's measure over SFT's."""
    policy, sft = _number(metrics, f"{name}/policy"), _number(metrics, f"{name}/sft")
    return policy / sft if policy is not None and sft else None
