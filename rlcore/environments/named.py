"""Environments by name, from settings that fit into a parameter file."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import RLEnvironment
from rlcore.environments.episode_protocol import parsed_config
from rlcore.environments.multi_objective import MultiObjectiveRewardEnv, RewardComponent
from rlcore.environments.preference import PreferenceComparisonEnv
from rlcore.environments.text_generation import TextGenerationEnv
from rlcore.errors import ConfigError
from rlcore.reward_functions import formatting_score, length_penalty_score, length_score

SCORES: dict[str, Callable[[str], float]] = {
    "length": length_score,
    "length_penalty": length_penalty_score,
    "formatting": formatting_score,
}
"""Components that need no setting. Besides them there is `keyword`."""

ENVIRONMENTS: dict[str, tuple[type[RLEnvironment], tuple[str, ...]]] = {
    "text_generation": (TextGenerationEnv, ("max_length", "stop_sequences", "temperature")),
    "multi_objective": (
        MultiObjectiveRewardEnv,
        ("max_length", "stop_sequences", "temperature", "reward_components", "reward_weights"),
    ),
    "preference_comparison": (PreferenceComparisonEnv, ("max_length",)),
}
"""Class of each environment, and the settings it takes from a config."""


def environment_named(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    config: str | Mapping[str, Any] | None = None,
    **objects: Any,
) -> RLEnvironment:
    """An environment from its name and its settings.

    Args:
        name: text_generation, multi_objective or preference_comparison.
        tokenizer: of the policy.
        prompts: texts.
        config: settings of the environment, as a mapping or as a JSON object in text. `reward_components` of
            multi_objective maps each name to `{"type": "length"}`, `length_penalty`, `formatting`, or
            `{"type": "keyword", "keywords": [...]}`, the number of keywords in the response, upper or lower case.
        **objects: arguments that no config can hold: reward_fn, preference_model, human_feedback_fn.

    Raises:
        ConfigError: unknown name, setting, object or component, or a value out of range.
    """
    if name not in ENVIRONMENTS:
        raise ConfigError(f"Unknown environment {name!r}. Use one of {', '.join(ENVIRONMENTS)}.")
    environment_class, known = ENVIRONMENTS[name]
    settings = parsed_config(config)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(f"{name}: found the settings {', '.join(unknown)}, expected {', '.join(known)}.")
    if name == "multi_objective":
        settings["reward_components"] = _components(settings.get("reward_components"))
    arguments = {**settings, **objects}
    try:
        inspect.signature(environment_class).bind(tokenizer, prompts, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name}: {error}. Found {', '.join(arguments) or 'no arguments'}, expected those of "
            f"{environment_class.__name__}{inspect.signature(environment_class)}."
        ) from None
    return environment_class(tokenizer, prompts, **arguments)  # type: ignore[call-arg]


def _components(described: Any) -> dict[str, RewardComponent]:
    if not isinstance(described, Mapping) or not described:
        raise ConfigError(f"reward_components: found {described!r}, expected an object of named components.")
    return {name: _component(name, settings) for name, settings in described.items()}


def _component(name: str, settings: Any) -> RewardComponent:
    kind = settings.get("type") if isinstance(settings, Mapping) else None
    if kind in SCORES and set(settings) == {"type"}:
        score = SCORES[kind]
        return lambda _, generated, __: score(generated)
    keywords = settings.get("keywords") if kind == "keyword" else None
    if isinstance(keywords, list) and keywords and all(isinstance(word, str) and word for word in keywords):
        lowered = [word.lower() for word in keywords]
        return lambda _, generated, __: sum(word in generated.lower() for word in lowered)
    raise ConfigError(
        f"reward_components.{name}: found {settings!r}, expected a type among {', '.join(SCORES)}, or "
        '{"type": "keyword", "keywords": [one text or more]}.'
    )
