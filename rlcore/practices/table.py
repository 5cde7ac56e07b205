"""The practices, each with what is checked, and the findings that they lead to."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rlcore.configs import PracticeName, PracticesConfig
from rlcore.errors import ConfigError
from rlcore.practices import data, measured, settings
from rlcore.practices.facts import Facts

Severity = Literal["warn", "refuse"]
Check = Callable[[Facts, PracticesConfig], Iterator[str]]


@dataclass(frozen=True)
class Practice:
    """One practice of the documents.

    Attributes:
        name: under which it is found and silenced.
        source: where the documents recommend it.
        statement: what is checked.
        moment: when enough is known to check it.
        check: yields what was found, what is recommended and what to do; nothing where the practice is followed.
        severity: refuse where going on would waste the run.
    """

    name: PracticeName
    source: str
    statement: str
    moment: str
    check: Check
    severity: Severity = "warn"


@dataclass(frozen=True)
class Finding:
    """A practice that was not followed."""

    practice: PracticeName
    severity: Severity
    message: str
    """With what silences it."""

    def __str__(self) -> str:
        return f"{self.practice}: {self.message}"


_PRACTICES = (
    Practice(
        "sft_before_rl",
        "PPO guide, 1",
        "ppo, grpo and dpo start from a model that has learnt from demonstrations",
        "at the start",
        settings.sft_before_rl,
    ),
    Practice(
        "reward_model_accuracy",
        "PPO guide, 2",
        "the reward model that ppo or grpo learns from orders at least `min_rm_accuracy` of its validation pairs",
        "before the policy learns",
        measured.reward_model_accuracy,
        "refuse",
    ),
    Practice(
        "kl_limit",
        "PPO guide, 3",
        "a penalty, a reference or `gate.max_kl_sequence` limits the KL to the start; training ends below that limit",
        "at the start, and after training",
        settings.kl_limit,
    ),
    Practice(
        "recommended_ranges",
        "PPO guide, 4",
        "KL coefficient, clipping range, discount, lambda and weight of the value loss lie in their recommended ranges",
        "at the start",
        settings.within_ranges,
    ),
    Practice(
        "ppo_learning_rate",
        "PPO guide, 5",
        "the learning rate of ppo lies in its recommended range",
        "at the start",
        settings.ppo_learning_rate,
    ),
    Practice(
        "small_initial_kl",
        "module page, PPO 1",
        "the initial KL coefficient of ppo is at most `max_initial_kl_coef`",
        "at the start",
        settings.small_initial_kl,
    ),
    Practice(
        "responses_per_step",
        "module page, PPO 2",
        "at least `min_responses_per_step` responses make one optimiser step of ppo or grpo",
        "at the start",
        settings.responses_per_step,
    ),
    Practice(
        "kl_on_target",
        "module page, PPO 3",
        "the KL of ppo ends within a factor of `kl_target_factor` of its target",
        "after training",
        measured.kl_on_target,
    ),
    Practice(
        "value_warmup",
        "module page, PPO 4",
        "the critic of ppo learns alone for an iteration or more",
        "at the start",
        settings.value_warmup,
    ),
    Practice(
        "preference_quality",
        "module page, DPO 1",
        "at most `max_poor_pairs` of the preference pairs are faulty, repeated or contradictory",
        "when the data are known",
        data.preference_quality,
    ),
    Practice(
        "dpo_learning_rate",
        "module page, DPO 2",
        "the learning rate of dpo or orpo lies in its recommended range",
        "at the start",
        settings.dpo_learning_rate,
    ),
    Practice(
        "label_smoothing",
        "module page, DPO 3",
        "dpo smooths labels where more than `max_contradictions` of the pairs contradict another",
        "when the data are known",
        data.label_smoothing,
    ),
    Practice(
        "frequent_evaluation",
        "module page, DPO 4",
        "a policy in training is measured on validation rows at least `min_evaluations` times",
        "when the data are known",
        settings.frequent_evaluation,
    ),
    Practice(
        "balanced_pairs",
        "module page, reward model 1",
        "neither the longer nor the shorter response is chosen in more than `max_longer_share` of the pairs",
        "when the data are known",
        data.balanced_pairs,
    ),
    Practice(
        "diverse_prompts",
        "module page, reward model 2",
        "preference pairs, and prompts that a policy answers, hold at least `min_distinct_prompts` different prompts",
        "when the data are known",
        data.diverse_prompts,
    ),
    Practice(
        "lora_for_large_models",
        "module page, reward model 3",
        "a model of more than `lora_above_parameters` weights is trained through adapters",
        "at the start",
        settings.lora_for_large_models,
    ),
    Practice(
        "separate_objectives",
        "module page, reward model 4",
        "preference pairs whose rows name several values of `objective` do not train one scalar reward model",
        "when the data are known",
        data.separate_objectives,
    ),
)

PRACTICES: dict[PracticeName, Practice] = {practice.name: practice for practice in _PRACTICES}
"""The documents' practices by name."""


def findings(facts: Facts, config: PracticesConfig) -> list[Finding]:
    """Which practices a run does not follow, as far as the facts tell; those that are silenced are not asked."""
    return [
        Finding(name, practice.severity, f"{message} To go on without this check: {facts.names.silence.format(name)}.")
        for name, practice in PRACTICES.items()
        if name not in config.silence
        for message in practice.check(facts, config)
    ]


def raise_refusals(found: Iterable[Finding]) -> None:
    """Let warnings pass.

    Raises:
        ConfigError: a finding refuses. One line for each that does.
    """
    refusals = [str(finding) for finding in found if finding.severity == "refuse"]
    if refusals:
        raise ConfigError("\n".join(refusals))
