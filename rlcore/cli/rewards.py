"""What scores the responses of ppo, from the documents' settings."""

from pathlib import Path

import datasets

from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import ConfigError
from rlcore.results import RewardSource

REWARD_MODEL = "reward_model"
"""Name under which rl_reward_weights weighs the reward model."""


def check_rewards(params: LLMTrainingParams) -> None:
    """Let settings pass that name what scores, and name it once. Loads nothing.

    Raises:
        ConfigError: neither reward model nor reference, two rewards that are not added up, or a missing name or weight.
    """
    if params.rl_reward_model_path is None and params.model_ref is None:
        raise ConfigError(
            "ppo found neither rl_reward_model_path nor model_ref, expected at least one. Name a reward model, or a "
            "KL reference to train against rl_reward_fn."
        )
    if params.rl_reward_fn == "custom":
        raise ConfigError("rl_reward_fn='custom': expected your function. Name it as module:function.")
    if params.rl_env_type in ("text_generation", "preference_comparison"):
        raise ConfigError(
            f"rl_env_type={params.rl_env_type!r}: ppo offers multi_objective alone. Generating text needs no "
            "environment, and comparisons train a policy with dpo."
        )
    if _adds_up(params):
        _check_objectives(params)
    else:
        _check_one_reward(params)


def reward_source(params: LLMTrainingParams, rows: datasets.Dataset) -> RewardSource:
    """The reward source of settings that check_rewards let pass.

    Args:
        params: the settings.
        rows: those to train on, with a column `prompt`.

    Raises:
        ConfigError: no such function, component or model, or one of another form.
        CheckpointError: the folder holds no whole reward model.
    """
    # These load torch, which checking settings and reading rows does without.
    from rlcore.environments import environment_named
    from rlcore.models import load_tokenizer
    from rlcore.rollout import reward_source_of

    tokenizer = load_tokenizer(params.model)
    model_path = None if params.rl_reward_model_path is None else Path(params.rl_reward_model_path)
    if not _adds_up(params):
        return reward_source_of(model_path or params.rl_reward_fn, tokenizer)
    weights = params.rl_reward_weights or {}
    if params.rl_env_config is None:
        rewards = {name: model_path if name == REWARD_MODEL else name for name in weights}
        return reward_source_of(rewards, tokenizer, weights)
    settings = params.rl_env_config | ({"reward_weights": weights} if weights else {})
    environment = environment_named("multi_objective", tokenizer, list(rows["prompt"]), settings)
    return reward_source_of(environment, tokenizer)


def _adds_up(params: LLMTrainingParams) -> bool:
    return params.rl_multi_objective or params.rl_env_type == "multi_objective"


def _check_objectives(params: LLMTrainingParams) -> None:
    if params.rl_reward_fn is not None:
        raise ConfigError(
            f"rl_reward_fn={params.rl_reward_fn!r}: one of several rewards. Name it in rl_reward_weights."
        )
    if params.rl_env_config is None and not params.rl_reward_weights:
        raise ConfigError(
            "Several rewards: found neither rl_reward_weights nor rl_env_config. Name them in one of these."
        )
    is_weighed = params.rl_env_config is None and REWARD_MODEL in (params.rl_reward_weights or {})
    if (params.rl_reward_model_path is not None) != is_weighed:
        raise ConfigError(
            f"Several rewards: found rl_reward_model_path={params.rl_reward_model_path!r} and "
            f"{'a' if is_weighed else 'no'} weight for {REWARD_MODEL} in rl_reward_weights, expected both or neither, "
            "and no rl_env_config beside them."
        )


def _check_one_reward(params: LLMTrainingParams) -> None:
    for name in ("rl_reward_weights", "rl_env_config"):
        if getattr(params, name) is not None:
            raise ConfigError(f"Found {name} for one reward. Set rl_multi_objective=True, or leave it out.")
    if params.rl_reward_fn is not None and params.rl_reward_model_path is not None:
        raise ConfigError(
            f"Found two rewards, rl_reward_fn={params.rl_reward_fn!r} and rl_reward_model_path="
            f"{params.rl_reward_model_path!r}. Leave one out, or add them up with rl_multi_objective=True."
        )
