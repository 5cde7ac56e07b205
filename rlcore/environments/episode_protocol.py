"""Environments of one's own for group-based training: they bring their data set and score whole completions."""

import inspect
import json
from collections.abc import Mapping
from typing import Any, Protocol, cast

from rlcore.errors import ConfigError
from rlcore.reward_functions import imported_object

METHODS = ("build_dataset", "score_episode", "get_tools")


class EpisodeEnvironment(Protocol):
    """What group-based training asks of an environment.

    One that runs tools has a method `call_tool(name, arguments, case_idx) -> str` besides: it gets the name and the
    arguments of a call as the policy wrote them, and returns the text that the policy reads in its next turn. What it
    raises is read by the policy too. Without it, calls are text for `score_episode`.
    """

    def build_dataset(self, tokenizer: Any) -> Any:
        """A data set with the column `prompt`, and `case_idx` where prompts and cases are numbered differently.

        A prompt is text or chat messages. Without `case_idx` a case is the number of its row, from 0.
        """

    def score_episode(self, model: Any, tokenizer: Any, completion: Any, case_idx: int) -> float | None:
        """The score of one completion of that case; None or NaN where there is none, and nothing is learned from it.

        Called without gradients, and the environment may go on generating with the model itself. The completion of a
        text prompt is all text behind it; that of chat messages is the messages that followed, answers of tools among
        them.
        """

    def get_tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools that the model is offered; empty without tools."""


def load_episode_environment(
    module: str, class_name: str, config: str | Mapping[str, Any] | None = None
) -> EpisodeEnvironment:
    """Import an environment class and build it.

    Args:
        module: full name of the module.
        class_name: class in it.
        config: keyword arguments of the class: a mapping, or a JSON object as text.

    Raises:
        ConfigError: no such module or class, the config is no JSON object or does not fit the class, or the class lacks
            a method of the protocol. Names what is missing.
    """
    environment_class = imported_object(module, class_name)
    name = f"{module}.{class_name}"
    missing = [method for method in METHODS if not callable(getattr(environment_class, method, None))]
    if missing:
        raise ConfigError(f"{name} has no method {', '.join(missing)}. An environment has {', '.join(METHODS)}.")
    arguments = parsed_config(config)
    signature = inspect.signature(environment_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name}{signature}: {error}. Found the settings {', '.join(arguments) or '(none)'}."
        ) from None
    return cast(EpisodeEnvironment, environment_class(**arguments))


def parsed_config(config: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of an environment, from a mapping or a JSON object as text; None is no setting.

    Raises:
        ConfigError: no JSON, or no object.
    """
    try:
        parsed = json.loads(config) if isinstance(config, str) else config
    except json.JSONDecodeError as error:
        raise ConfigError(f"Environment config {config!r}: {error}. Expected a JSON object.") from None
    if parsed is None:
        return {}
    if not isinstance(parsed, Mapping):
        raise ConfigError(f"Environment config: found {parsed!r}, expected a JSON object.")
    return dict(parsed)
