"""What scores the responses of ppo and grpo, from the documents' settings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets

from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import ConfigError
from rlcore.results import RewardSource

REWARD_MODEL = "reward_model"
"""Name under which rl_reward_weights weighs the reward model."""

ENVIRONMENT_SETTINGS = {
    "text_generation": {"stop_sequences"},
    "multi_objective": {"stop_sequences", "reward_components", "reward_weights"},
    "preference_comparison": set[str](),
}
"""What rl_env_config may hold for each rl_env_type: settings that change the score of a response."""


def check_rewards(params: LLMTrainingParams) -> None:
    """Let settings of ppo or grpo pass that name what scores, and name it once. Loads nothing.

    Raises:
        ConfigError: nothing that scores, two rewards that are not added up, or a missing name or weight.
    """
    _check_presence(params)
    if params.rl_reward_fn == "custom":
        raise ConfigError("rl_reward_fn='custom': expected your function. Name it as module:function.")
    if params.rl_multi_objective and params.rl_env_type not in (None, "multi_objective"):
        raise ConfigError(
            f"Found rl_multi_objective=True and rl_env_type={params.rl_env_type!r}. Leave one of them out."
        )
    if _adds_up(params):
        _check_objectives(params)
    else:
        _check_one_reward(params)
    if params.rl_env_type == "preference_comparison":
        _check_comparison(params)


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
    from rlcore.environments import environment_named, preference_by_score
    from rlcore.models import load_tokenizer
    from rlcore.processes import launched_processes
    from rlcore.rollout import reward_source_of

    tokenizer = load_tokenizer(params.model)
    device = launched_processes().device
    settings = dict(params.rl_env_config or {})

    def source_of(reward: Any, weights: dict[str, float] | None = None) -> RewardSource:
        return reward_source_of(reward, tokenizer, weights, device=None if device is None else str(device))

    def environment(name: str, **objects: Any) -> RewardSource:
        return source_of(environment_named(name, tokenizer, _texts(rows["prompt"]), settings, **objects))

    model_path = None if params.rl_reward_model_path is None else Path(params.rl_reward_model_path)
    weights = params.rl_reward_weights or {}
    if _adds_up(params) and "reward_components" in settings:
        settings |= {"reward_weights": weights} if weights else {}
        return environment("multi_objective")
    if _adds_up(params):
        return source_of({name: model_path if name == REWARD_MODEL else name for name in weights}, weights)
    source = source_of(model_path or params.rl_reward_fn)
    if params.rl_env_type == "text_generation":
        return environment("text_generation", reward_fn=source)
    if params.rl_env_type == "preference_comparison":
        return environment("preference_comparison", human_feedback_fn=preference_by_score(source))
    return source


def _adds_up(params: LLMTrainingParams) -> bool:
    return params.rl_multi_objective or params.rl_env_type == "multi_objective"


def _check_presence(params: LLMTrainingParams) -> None:
    if params.stage == "ppo" and params.rl_reward_model_path is None and params.model_ref is None:
        raise ConfigError(
            "ppo found neither rl_reward_model_path nor model_ref, expected at least one. Name a reward model, or a "
            "KL reference to train against rl_reward_fn."
        )
    named = (params.rl_reward_model_path, params.rl_reward_fn, params.rl_reward_weights, params.rl_env_config)
    if params.stage == "grpo" and all(each is None for each in named):
        raise ConfigError(
            "grpo found neither rl_env_class nor rl_reward_model_path nor rl_reward_fn, expected one. Name your "
            "environment with rl_env_module and rl_env_class, a reward model, or a reward function."
        )


def _check_objectives(params: LLMTrainingParams) -> None:
    if params.rl_reward_fn is not None:
        raise ConfigError(
            f"rl_reward_fn={params.rl_reward_fn!r}: one of several rewards. Name it in rl_reward_weights."
        )
    _check_environment_settings(params, "multi_objective")
    has_components = "reward_components" in (params.rl_env_config or {})
    if not has_components and not params.rl_reward_weights:
        raise ConfigError(
            "Several rewards: found neither rl_reward_weights nor reward_components in rl_env_config. Name them in one "
            "of these."
        )
    if params.rl_env_config and not has_components:
        raise ConfigError(
            f"rl_env_config={params.rl_env_config!r}: found no reward_components. Add them, or leave it out."
        )
    if params.rl_reward_weights and "reward_weights" in (params.rl_env_config or {}):
        raise ConfigError("Found rl_reward_weights and reward_weights in rl_env_config. Leave one of them out.")
    is_weighed = not has_components and REWARD_MODEL in (params.rl_reward_weights or {})
    if (params.rl_reward_model_path is not None) != is_weighed:
        raise ConfigError(
            f"Several rewards: found rl_reward_model_path={params.rl_reward_model_path!r} and "
            f"{'a' if is_weighed else 'no'} weight for {REWARD_MODEL} in rl_reward_weights, expected both or neither, "
            "and no rl_env_config beside them."
        )


def _check_one_reward(params: LLMTrainingParams) -> None:
    if params.rl_reward_weights is not None:
        raise ConfigError("Found rl_reward_weights for one reward. Set rl_multi_objective=True, or leave it out.")
    if params.rl_env_config is not None and params.rl_env_type is None:
        raise ConfigError("Found rl_env_config without an environment. Set rl_env_type, or leave it out.")
    if params.rl_env_type is not None:
        _check_environment_settings(params, params.rl_env_type)
    if params.rl_reward_fn is not None and params.rl_reward_model_path is not None:
        raise ConfigError(
            f"Found two rewards, rl_reward_fn={params.rl_reward_fn!r} and rl_reward_model_path="
            f"{params.rl_reward_model_path!r}. Leave one out, or add them up with rl_multi_objective=True."
        )


def _check_environment_settings(params: LLMTrainingParams, name: str) -> None:
    known = ENVIRONMENT_SETTINGS[name]
    unknown = sorted(set(params.rl_env_config or {}) - known)
    if unknown:
        raise ConfigError(
            f"rl_env_config: found {', '.join(unknown)}, expected {', '.join(sorted(known)) or 'no setting'} for "
            f"{name}. Leave it out."
        )


def _check_comparison(params: LLMTrainingParams) -> None:
    if params.rl_reward_model_path is None and params.rl_reward_fn is None:
        raise ConfigError(
            "rl_env_type='preference_comparison' found neither rl_reward_model_path nor rl_reward_fn, expected who "
            "prefers. Name a reward model."
        )
    if params.valid_split is not None:
        raise ConfigError(
            f"valid_split={params.valid_split!r}: with rl_env_type='preference_comparison' the scores of a prompt's "
            "responses add up to 0, so no checkpoint is better. Leave it out."
        )


def _texts(prompts: Iterable[Any]) -> list[str]:
    """What an environment shows of each prompt: text, or the content of the last of its messages."""
    return [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts]
