"""The gate: which conditions a policy must meet before it becomes the challenger."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlcore.configs import GateConfig

TAG_LIMIT = 250
"""Longest tag name that every registry takes, in characters."""

NO_GAIN = (
    "Name a checker that measures it in evaluate.gold, or set gate.min_gain to {win: 0}, the comparison by the reward "
    "model."
)
NO_GOLD = (
    "It takes a checker that measures gold in evaluate.gold, and answers to validation prompts (with dpo and orpo, "
    "validation pairs about them). Or set gate.max_drop_from_best to null."
)


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
    advice: str = ""
    """What to do where it was not measured."""
    strict: bool = False
    """Whether the bound itself is refused."""

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "refused"
        bound = f"bound {'more than ' if self.strict else ''}{self.bound:.4g}"
        if self.found is not None:
            return f"{self.rule}: {self.found:.4g}, {bound}, {verdict}"
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.rule}: not measured, {bound}, {verdict}{advice}"


@dataclass(frozen=True)
class GateReport:
    """The verdict and every reason for it."""

    passed: bool
    reasons: tuple[Reason, ...]

    @property
    def refusals(self) -> tuple[Reason, ...]:
        """The conditions that were not met."""
        return tuple(reason for reason in self.reasons if not reason.passed)

    def tags(self) -> dict[str, str]:
        """The verdict as tags of a run or a version."""
        reasons = {f"gate.{reason.rule}"[:TAG_LIMIT]: str(reason) for reason in self.reasons}
        return {"gate.passed": str(self.passed).lower(), **reasons}


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
        for name, least in ((f"{key}/{against}", bound), (f"{key}/{against}_low", 0.0)):
            found = _number(metrics, name)
            yield Reason(name, found, least, found is not None and found > least, NO_GAIN, strict=True)


def _budgets(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    length_ratio = _ratio(metrics, "response/length_mean")
    best, published = (_number(metrics, f"validation_gold/{name}") for name in ("best", "published"))
    drop = None if best is None or published is None else best - published
    budgets = (
        ("kl_sequence", "max_kl_sequence", _number(metrics, "kl/ref_sequence_mean")),
        ("drop_from_best", "max_drop_from_best", drop),
        ("min_length_ratio", "min_length_ratio", length_ratio),
        ("max_length_ratio", "max_length_ratio", length_ratio),
        ("eos_fraction", "min_eos_fraction", _number(metrics, "response/eos_fraction/policy")),
        ("distinct_ratio", "min_distinct_ratio", _ratio(metrics, "response/distinct_2")),
        ("perplexity_ratio", "max_perplexity_ratio", _ratio(metrics, "response/perplexity")),
        ("reward_model_accuracy", "min_reward_model_accuracy", _number(metrics, "reward_model/accuracy")),
    )
    for rule, setting, found in budgets:
        bound: float | None = getattr(config, setting)
        if bound is not None:
            advice = NO_GOLD if rule == "drop_from_best" else f"See why, or set gate.{setting} to null."
            yield Reason(rule, found, bound, _within(found, bound, setting.startswith("max_")), advice)


def _within(found: float | None, bound: float, largest: bool) -> bool:
    return found is not None and (found <= bound if largest else found >= bound)


def _number(metrics: Mapping[str, float], name: str) -> float | None:
    value = metrics.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def _ratio(metrics: Mapping[str, float], name: str) -> float | None:
    """The policy's measure over SFT's."""
    policy, sft = _number(metrics, f"{name}/policy"), _number(metrics, f"{name}/sft")
    return policy / sft if policy is not None and sft else None
