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

WIN_RATE = "win/rate_over_champion"
SEE = "See why, or set {} to null."


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
            # A KL of -1e-7 is rounding: 0, and without a sign.
            return f"{self.rule}: {round(self.found, 6):z.4g}, {bound}, {verdict}"
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


def decide(config: GateConfig, metrics: Mapping[str, float], min_rm_accuracy: float | None) -> GateReport:
    """Judge a policy by the metrics of its evaluation.

    A gain must exceed its bound, so a tie refuses; a budget may be used up. A metric that is missing or not finite does
    not pass. Gains count against SFT; the win rate counts against the champion, where there is one.

    Args:
        config: the conditions; those that are null are not checked.
        metrics: contents of evaluate.json.
        min_rm_accuracy: least accuracy of the reward model on held-out pairs; None does not check it.

    Returns:
        passed, when all conditions are met, and one reason for each condition.
    """
    reasons = (
        *_gains(config, metrics),
        *_win_rate(config, metrics),
        *_budgets(config, metrics),
        *_accuracy(metrics, min_rm_accuracy),
    )
    return GateReport(all(reason.passed for reason in reasons), reasons)


def _gains(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    for key, bound in config.min_gain.items():
        for name, least in ((f"{key}/gain", bound), (f"{key}/gain_low", 0.0)):
            yield _more_than(name, _number(metrics, name), least, NO_GAIN)


def _win_rate(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    """The lower end alone is asked: where it exceeds the bound, the rate does."""
    if config.min_win_rate is not None and any(name.endswith("/champion") for name in metrics):
        name = f"{WIN_RATE}_low"
        yield _more_than(name, _number(metrics, name), config.min_win_rate, SEE.format("gate.min_win_rate"))


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
        ("calibration_error", "max_calibration_error", _number(metrics, "reward_model/calibration_error")),
        ("leak_share", "max_leak_share", _number(metrics, "data/leak_share")),
        ("non_finite", "max_non_finite", _number(metrics, "response/non_finite_count/policy")),
    )
    for rule, setting, found in budgets:
        bound: float | None = getattr(config, setting)
        if bound is not None:
            advice = NO_GOLD if rule == "drop_from_best" else SEE.format(f"gate.{setting}")
            yield Reason(rule, found, bound, _within(found, bound, setting.startswith("max_")), advice)


def _accuracy(metrics: Mapping[str, float], least: float | None) -> Iterator[Reason]:
    if least is not None:
        found = _number(metrics, "reward_model/accuracy")
        advice = SEE.format("practices.min_rm_accuracy")
        yield Reason("reward_model_accuracy", found, least, _within(found, least, largest=False), advice)


def _more_than(rule: str, found: float | None, bound: float, advice: str) -> Reason:
    return Reason(rule, found, bound, found is not None and found > bound, advice, strict=True)


def _within(found: float | None, bound: float, largest: bool) -> bool:
    return found is not None and (found <= bound if largest else found >= bound)


def _number(metrics: Mapping[str, float], name: str) -> float | None:
    value = metrics.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def _ratio(metrics: Mapping[str, float], name: str) -> float | None:
    """The policy's measure over SFT's."""
    policy, sft = _number(metrics, f"{name}/policy"), _number(metrics, f"{name}/sft")
    return policy / sft if policy is not None and sft else None
