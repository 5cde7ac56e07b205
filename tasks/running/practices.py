"""Good practice in a pipeline run: what is known before each step is judged, each finding once.

The flow checks; a stage that `dvc repro` runs by hand is not judged.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rlcore.configs import PPOConfig, PreferenceConfig, RolloutConfig
from rlcore.practices import (
    Facts,
    Finding,
    FullTraining,
    Names,
    PairFigures,
    findings,
    is_fine_tuned,
    parameter_count,
    raise_refusals,
    ranges_of,
)
from tasks.records import artifacts
from tasks.records.parameters import Parameters
from tasks.records.versioning import StageFacts

KL = "kl/ref_sequence_mean"
LAST_SHARE = 0.25
"""Share of a training, at its end, over which its KL is averaged."""
SCRATCH = "scratch"
"""Name of a model that sft builds anew."""

Policy = RolloutConfig | PreferenceConfig
"""Settings of the stage that trains the policy."""


@dataclass
class PracticeChecks:
    """The findings of one pipeline run.

    Args:
        parameters: of the run.
        root: the checkout.
        say: shows a text to who watches.
        tag: sets tags of the run in MLflow.
    """

    parameters: Parameters
    root: Path
    say: Callable[[str], None]
    tag: Callable[[dict[str, str]], None]
    found: list[Finding] = field(default_factory=list)

    def judge(self, done: Mapping[str, StageFacts]) -> None:
        """Say what is found new before the next step.

        Args:
            done: the stages that are up to date.

        Raises:
            ConfigError: a practice refuses.
        """
        known = {finding.practice for finding in self.found}
        facts = facts_of(self.parameters, self.root, done)
        new = [each for each in findings(facts, self.parameters.practices) if each.practice not in known]
        if new:
            self.found += new
            self.tag({f"practice.{each.practice}": _messages(new, each.practice) for each in new})
        # What refuses is the error's to say.
        if warnings := [f"{each.severity}: {each}" for each in new if each.severity == "warn"]:
            self.say("\n".join(warnings))
        raise_refusals(self.found)


def facts_of(parameters: Parameters, root: Path, done: Mapping[str, StageFacts]) -> Facts:
    """What is known of a run once some of its stages are up to date.

    Raises:
        DataError: a file that such a stage wrote is missing.
    """
    policy = _policy(parameters)
    report = artifacts.read_json(root / artifacts.VALIDATION) if "validate" in done else None
    trace = artifacts.read_rows(root / artifacts.TRACES["policy"]) if "policy" in done else []
    learns_from_reward_model = isinstance(policy, RolloutConfig) and parameters.reward_function is None
    return Facts(
        trainer=parameters.algorithm,
        config=policy,
        names=Names(
            lambda name: f"{parameters.algorithm}.{name}",
            "add {} to practices.silence",
            "raise validate.validation_share",
            "practices.{}",
        ),
        ranges=ranges_of(policy, lambda name: f"{parameters.algorithm}.{name}"),
        is_fine_tuned=_is_fine_tuned(parameters, root),
        full_trainings=_full_trainings(parameters, root),
        pairs=None if report is None else _pair_figures(report),
        distinct_prompts={} if report is None else _distinct_prompts(report, policy),
        validation_rows=None if report is None else _rows(report, policy, "validation"),
        evaluations=None if report is None else _evaluations(report, policy),
        reward_model=str(artifacts.REWARD_DIR) if learns_from_reward_model else None,
        reward_accuracy=done["reward"].metrics.get("best/validation/accuracy") if "reward" in done else None,
        reward_pairs=report["splits"]["preferences"]["validation"] if report and "reward" in done else None,
        max_kl=parameters.gate.max_kl_sequence,
        kl=_kl(trace, root, done),
        kl_of_target=_kl_of_target(trace, policy),
    )


def _policy(parameters: Parameters) -> Policy:
    policy = parameters.of_stage("policy")
    assert isinstance(policy, RolloutConfig | PreferenceConfig)
    return policy


def _is_fine_tuned(parameters: Parameters, root: Path) -> bool | None:
    start = _policy(parameters).model_name
    if Path(start) == artifacts.SFT_DIR and parameters.sft.max_steps:
        return True
    origin = _origin(parameters, start)
    return False if origin == SCRATCH else is_fine_tuned(root / origin)


def _full_trainings(parameters: Parameters, root: Path) -> tuple[FullTraining, ...]:
    policy, reward, sft = _policy(parameters), parameters.reward, parameters.sft
    trainings = (
        ("sft.lora", sft.model_name, sft.lora is None and sft.max_steps),
        ("reward.use_lora", reward.model_name, not reward.use_lora and reward.num_epochs),
        (f"{parameters.algorithm}.lora", policy.model_name, policy.lora is None),
    )
    origins = ((setting, _origin(parameters, model)) for setting, model, is_full in trainings if is_full)
    return tuple(FullTraining(setting, model, parameter_count(root / model)) for setting, model in origins)


def _origin(parameters: Parameters, model: str) -> str:
    """The model that a stage starts from; of the model that sft makes, the one that sft starts from."""
    return parameters.sft.model_name if Path(model) == artifacts.SFT_DIR else model


def _pair_figures(report: Mapping[str, Any]) -> PairFigures:
    counts: Counter[str] = Counter()
    for found in report["findings"]:
        if found["kind"] == "preferences":
            counts[found["rule"]] += found["count"]
    return PairFigures(
        rows=report["counts"]["preferences"]["rows"],
        dropped=report["counts"]["preferences"]["dropped"],
        repeated=counts["duplicate"],
        contradicting=counts["contradiction"],
        longer_share=report["pairs"]["chosen_longer_share"],
        objectives=tuple(report["pairs"]["objectives"]),
    )


def _distinct_prompts(report: Mapping[str, Any], policy: Policy) -> dict[str, int]:
    kinds = ("preferences", "prompts") if isinstance(policy, RolloutConfig) else ("preferences",)
    return {f"{kind}.jsonl": report["distinct_prompts"][kind] for kind in kinds}


def _rows(report: Mapping[str, Any], policy: Policy, split: artifacts.Split) -> int:
    """Rows of a split of what the policy learns from."""
    kind = "prompts" if isinstance(policy, RolloutConfig) else "preferences"
    return int(report["splits"][kind][split])


def _evaluations(report: Mapping[str, Any], policy: Policy) -> int | None:
    """Evaluations in the training of the policy; None where it is not trained."""
    if isinstance(policy, RolloutConfig):
        steps = policy.num_iterations
    else:
        batches = math.ceil(_rows(report, policy, "train") / policy.batch_size)
        steps = policy.num_epochs * math.ceil(batches / policy.gradient_accumulation_steps)
    if not steps:
        return None
    return math.ceil(steps / policy.eval_every) if _rows(report, policy, "validation") else 0


def _last_mean(trace: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean of a metric over the last part of a training; None where it was not measured."""
    values = [row[name] for row in trace if name in row]
    return fmean(values[-math.ceil(LAST_SHARE * len(values)) :]) if values else None


def _kl(trace: Sequence[Mapping[str, Any]], root: Path, done: Mapping[str, StageFacts]) -> float | None:
    """KL to the start, in nats per response: as training ended, else on held-out prompts."""
    if (trained := _last_mean(trace, KL)) is not None or "evaluate" not in done:
        return trained
    value = artifacts.read_json(root / artifacts.EVALUATE).get(KL)
    return None if value is None else float(value)


def _kl_of_target(trace: Sequence[Mapping[str, Any]], policy: Policy) -> float | None:
    """KL to the start as training ended, in the unit of the target that ppo steers for."""
    return _last_mean(trace, f"kl/ref_{policy.kl_target_unit}_mean") if isinstance(policy, PPOConfig) else None


def _messages(found: Sequence[Finding], name: str) -> str:
    return "\n".join(each.message for each in found if each.practice == name)
