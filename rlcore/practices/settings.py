"""Practices that settings and the model to start from follow or not."""

from collections.abc import Iterator

from rlcore.configs import (
    DPOConfig,
    GRPOConfig,
    ORPOConfig,
    PPOConfig,
    PracticesConfig,
    PreferenceConfig,
    RolloutConfig,
    recommended_ranges,
)
from rlcore.practices.facts import Facts, InRange


def sft_before_rl(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The policy starts from a model that has learnt from demonstrations."""
    if facts.trainer in ("ppo", "grpo", "dpo") and facts.is_fine_tuned is False:
        yield (
            f"{_shown(facts, 'model_name')} has not learnt from demonstrations, as {facts.trainer} expects. Train sft "
            "first and start from its model, or from an instruction-tuned one."
        )


def within_ranges(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Numbers other than the learning rate stay in their recommended ranges."""
    for number in facts.ranges:
        yield from _outside(number)


def ppo_learning_rate(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The learning rate of PPO stays in its recommended range."""
    if isinstance(facts.config, PPOConfig):
        yield from _learning_rate(facts)


def dpo_learning_rate(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The learning rate of DPO, or of ORPO, stays in its recommended range."""
    if isinstance(facts.config, DPOConfig | ORPOConfig):
        yield from _learning_rate(facts)


def small_initial_kl(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """PPO starts with a small KL coefficient, which the controller adapts."""
    if isinstance(facts.config, PPOConfig) and facts.config.kl_penalty_coef > config.max_initial_kl_coef:
        yield (
            f"{_shown(facts, 'kl_penalty_coef')}, recommended at most {config.max_initial_kl_coef:g}. Start lower, "
            f"since the controller raises it as needed{facts.names.move('max_initial_kl_coef')}."
        )


def responses_per_step(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Enough responses make one optimiser step."""
    if not isinstance(facts.config, RolloutConfig):
        return
    wanted = facts.config.mini_batch_size * facts.config.gradient_accumulation_steps
    size = min(wanted, facts.config.batch_size)
    if size < config.min_responses_per_step:
        lowest = "batch_size" if size < wanted else "gradient_accumulation_steps"
        yield (
            f"{size} responses make one optimiser step, recommended at least {config.min_responses_per_step}. "
            f"Raise {facts.names.setting(lowest)}{facts.names.move('min_responses_per_step')}."
        )


def value_warmup(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The critic of PPO learns before the policy does."""
    name = facts.names.setting("value_warmup_iterations")
    if isinstance(facts.config, PPOConfig) and name is not None and facts.config.value_warmup_iterations == 0:
        yield f"{name}=0, recommended at least 1: a new critic misleads the first updates. Raise it."


def kl_limit(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The KL to the start is held down or limited, and stays below the limit."""
    if facts.kl is not None and facts.max_kl is not None and facts.kl > facts.max_kl:
        yield (
            f"{facts.trainer} ended {facts.kl:.3g} nats per response away from its start, more than the limit of "
            f"{facts.max_kl:g}. Lower the learning rate, or {_closer(facts)}."
        )
    if facts.max_kl is None and _is_free(facts):
        name, value = ("kl_penalty_coef", "above 0") if facts.samples else ("reference_free", "to false")
        yield (
            f"{facts.trainer}: nothing limits how far the policy moves from its start. Set {facts.names.setting(name)} "
            f"{value}, or watch kl/ref_sequence_mean."
        )


def frequent_evaluation(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Validation rows are measured while the policy trains."""
    is_policy = isinstance(facts.config, RolloutConfig | PreferenceConfig)
    if not is_policy or facts.evaluations is None or facts.evaluations >= config.min_evaluations:
        return
    if facts.validation_rows == 0:
        yield (
            f"{facts.trainer} has no validation rows, so that nothing is evaluated and the last checkpoint is taken. "
            f"Add some: {facts.names.validation}."
        )
    else:
        times = "once" if facts.evaluations == 1 else f"{facts.evaluations} times"
        yield (
            f"{facts.trainer} is evaluated {times} in all, recommended at least "
            f"{config.min_evaluations}. Lower {facts.names.setting('eval_every')}{facts.names.move('min_evaluations')}."
        )


def lora_for_large_models(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Large models are trained through adapters."""
    for training in facts.full_trainings:
        if training.parameters is not None and training.parameters > config.lora_above_parameters:
            yield (
                f"All of {training.model}'s {_billions(training.parameters)} weights are trained, recommended up to "
                f"{_billions(config.lora_above_parameters)}. Set {training.setting}"
                f"{facts.names.move('lora_above_parameters')}."
            )


def _learning_rate(facts: Facts) -> Iterator[str]:
    name = facts.names.setting("learning_rate")
    if isinstance(facts.config, PPOConfig | DPOConfig | ORPOConfig) and name is not None:
        recommended = dict(recommended_ranges(type(facts.config)))["learning_rate"]
        yield from _outside(InRange(name, facts.config.learning_rate, recommended))


def _outside(number: InRange) -> Iterator[str]:
    name, value, recommended = number
    if value not in recommended:
        yield f"{name}={value:g} is outside the recommended range of {recommended}. Choose a value within."


def _is_free(facts: Facts) -> bool:
    if isinstance(facts.config, DPOConfig):
        return facts.config.reference_free
    return isinstance(facts.config, PPOConfig | GRPOConfig) and facts.config.kl_penalty_coef == 0


def _closer(facts: Facts) -> str:
    """What keeps a policy closer to its start, besides a lower learning rate."""
    if isinstance(facts.config, ORPOConfig):
        # Its beta weighs the odds ratio; nothing pulls to a reference.
        return f"lower {facts.names.setting('num_epochs')}"
    return f"raise {facts.names.setting('kl_penalty_coef' if facts.samples else 'beta')}"


def _shown(facts: Facts, field: str) -> str:
    value = getattr(facts.config, field)
    return f"{facts.names.setting(field)}={value if isinstance(value, str) else format(value, 'g')}"


def _billions(count: float) -> str:
    return f"{count / 1e9:.3g} billion"
