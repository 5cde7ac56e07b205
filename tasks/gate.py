"""The gate: which conditions a policy must meet before it becomes the challenger."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlcore.configs import GateConfig
from tasks.records.artifacts import ANSWERS, EVALUATE, FIGURES, PREFERENCES, TRACES

TAG_LIMIT = 250
"""Longest tag name that every registry takes, in characters."""

WIN_RATE = "win/rate_over_champion"

_CLOSER = "Raise kl_penalty_coef (ppo, grpo) or beta (dpo, orpo), or train shorter."
ADVICE = {
    "gain": f"{FIGURES}/comparison.png, and the answers in {ANSWERS}: too little was learnt, or something else. Check "
    "the labels of the preference pairs, then train longer or on more pairs.",
    "win_rate": f"{FIGURES}/comparison.png: the champion answers the same prompts as well, or the prompts are too few "
    "to tell. Train on more or better data, or raise evaluate.samples_per_prompt.",
    "kl_sequence": f"{FIGURES}/kl.png (ppo, grpo): how far training went from SFT. {_CLOSER}",
    "drop_from_best": f"{FIGURES}/learning.png: where the score rises and the checker falls, the reward model is being "
    f"fooled. Add preference pairs. {_CLOSER}",
    "min_length_ratio": f"{ANSWERS}: was what is missing worth anything? If so, add pairs whose longer answer is "
    "chosen.",
    "max_length_ratio": f"{ANSWERS}: is the rest only filling? If so, add pairs whose shorter answer is chosen.",
    "eos_fraction": f"{ANSWERS}: answers are cut off. Raise max_new_tokens of evaluate and of the training, or "
    "lower missing_eos_score (ppo, grpo).",
    "distinct_ratio": f"{ANSWERS}: they repeat themselves or each other. {_CLOSER}",
    "perplexity_ratio": f"{ANSWERS}: a language model finds them unlikely. {_CLOSER}",
    "calibration_error": f"{EVALUATE} beside validation/calibration_error in {TRACES['reward']}. Where both are large, "
    "change reward.num_epochs or reward.learning_rate; where only the first is, held-out pairs were labelled otherwise "
    "than those of training: check the labels of both.",
    "leak_share": f"{EVALUATE}, data/leak_share: held-out prompts stand in the training data. Give all rows with a "
    "prompt the same `split`, or none.",
    "non_finite": f"{ANSWERS}: those without a score. {FIGURES}/health.png (ppo, grpo) shows where training broke. "
    "Take a smaller learning rate.",
    "reward_model_accuracy": f"`rlhf pipeline pair-accuracy`, and {PREFERENCES['held_out']}: does the reward model "
    "know no better, or are the labels wrong? Mend labels, or add pairs.",
}
"""Condition → where to look when it is not met, and what to change."""

_NOT_A_NUMBER = f"{EVALUATE}: it is missing there, or is not a number. Mend its cause, or set {{setting}} to null."
_NO_PAIRS = "It takes held-out preference pairs: raise validate.held_out_share, or set {setting} to null."
UNMEASURED = {
    "gain": "Name a checker that measures it in evaluate.gold, or set gate.min_gain to {{win: 0}}, the comparison by "
    "the reward model.",
    "drop_from_best": "It takes a checker that measures gold in evaluate.gold, and answers to validation prompts (with "
    "dpo and orpo, validation pairs about them). Or set {setting} to null.",
    "perplexity_ratio": "Name a language model in evaluate.text_model, or set {setting} to null.",
    "calibration_error": _NO_PAIRS,
    "reward_model_accuracy": _NO_PAIRS,
}
"""Condition → what to do where it was not measured; the others have no number in evaluate.json."""


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
    """Where it is not met: where to look, and what to change."""
    strict: bool = False
    """Whether the bound itself is refused."""

    def __str__(self) -> str:
        # A KL of -1e-7 is rounding: 0, and without a sign.
        found = "not measured" if self.found is None else f"{round(self.found, 6):z.4g}"
        bound = f"bound {'more than ' if self.strict else ''}{self.bound:.4g}"
        return f"{self.rule}: {found}, {bound}, {'passed' if self.passed else 'refused'}"


@dataclass(frozen=True)
class GateReport:
    """The verdict and every reason for it."""

    passed: bool
    reasons: tuple[Reason, ...]

    @property
    def refusals(self) -> tuple[Reason, ...]:
        """The conditions that were not met."""
        return tuple(reason for reason in self.reasons if not reason.passed)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about the refusals, each piece once and with the conditions that it is about."""
        rules: dict[str, list[str]] = {}
        for reason in self.refusals:
            if reason.advice:
                rules.setdefault(reason.advice, []).append(reason.rule)
        return tuple(f"{', '.join(names)}: {advice}" for advice, names in rules.items())

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
            yield _more_than(name, _number(metrics, name), least, "gain", "gate.min_gain")


def _win_rate(config: GateConfig, metrics: Mapping[str, float]) -> Iterator[Reason]:
    """The lower end alone is asked: where it exceeds the bound, the rate does."""
    if config.min_win_rate is not None and any(name.endswith("/champion") for name in metrics):
        name = f"{WIN_RATE}_low"
        yield _more_than(name, _number(metrics, name), config.min_win_rate, "win_rate", "gate.min_win_rate")


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
            yield _within(rule, found, bound, f"gate.{setting}", largest=setting.startswith("max_"))


def _accuracy(metrics: Mapping[str, float], least: float | None) -> Iterator[Reason]:
    if least is not None:
        found = _number(metrics, "reward_model/accuracy")
        yield _within("reward_model_accuracy", found, least, "practices.min_rm_accuracy", largest=False)


def _more_than(rule: str, found: float | None, bound: float, topic: str, setting: str) -> Reason:
    passed = found is not None and found > bound
    return Reason(rule, found, bound, passed, "" if passed else _advice(topic, found, setting), strict=True)


def _within(rule: str, found: float | None, bound: float, setting: str, *, largest: bool) -> Reason:
    passed = found is not None and (found <= bound if largest else found >= bound)
    return Reason(rule, found, bound, passed, "" if passed else _advice(rule, found, setting))


def _advice(topic: str, found: float | None, setting: str) -> str:
    return UNMEASURED.get(topic, _NOT_A_NUMBER).format(setting=setting) if found is None else ADVICE[topic]


def _number(metrics: Mapping[str, float], name: str) -> float | None:
    value = metrics.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def _ratio(metrics: Mapping[str, float], name: str) -> float | None:
    """The policy's measure over SFT's."""
    policy, sft = _number(metrics, f"{name}/policy"), _number(metrics, f"{name}/sft")
    return policy / sft if policy is not None and sft else None
