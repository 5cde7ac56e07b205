"""Practices of which a measurement says whether they were followed."""

from collections.abc import Iterator

from rlcore.configs import PPOConfig, PracticesConfig
from rlcore.practices.facts import Facts


def reward_model_accuracy(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The reward model is right often enough to be learnt from."""
    found, least = facts.reward_accuracy, config.min_rm_accuracy
    if not facts.samples or facts.reward_model is None or found is None or least is None or found >= least:
        return
    pairs = "its" if facts.reward_pairs is None else str(facts.reward_pairs)
    yield (
        f"The reward model {facts.reward_model} orders {found:.1%} of {pairs} validation pairs rightly, expected at "
        f"least {least:.1%} before {facts.trainer} learns from it. Give it more or cleaner pairs, or train it longer"
        f"{facts.names.move('min_rm_accuracy')}."
    )


def kl_on_target(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """The KL of PPO ends near its target."""
    if not isinstance(facts.config, PPOConfig) or facts.kl_of_target is None or facts.config.kl_penalty_coef == 0:
        return
    target, factor = facts.config.kl_target, config.kl_target_factor
    if target / factor <= facts.kl_of_target <= target * factor:
        return
    if facts.kl_of_target > target:
        advice = f"Lower {facts.names.setting('learning_rate')} or {facts.names.setting('kl_horizon')}"
    else:
        advice = f"Lower {facts.names.setting('kl_penalty_coef')} or the target, or train longer"
    yield (
        f"ppo ended at a KL of {facts.kl_of_target:.3g} nats per {facts.config.kl_target_unit}, recommended within a "
        f"factor of {factor:g} of {facts.names.setting('kl_target')}={target:g}. {advice}"
        f"{facts.names.move('kl_target_factor')}."
    )
