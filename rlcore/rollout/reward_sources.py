"""Whatever scores responses as a reward source, and asking it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn
from transformers import PreTrainedTokenizerBase

from rlcore.environments import EnvironmentReward, RLEnvironment
from rlcore.errors import ConfigError, DataError
from rlcore.results import RewardSource
from rlcore.reward import ClassifierSource, RewardModel, RewardModelSource, reward_model_source
from rlcore.reward_functions import (
    REWARD_FUNCTIONS,
    ScoreCheck,
    WeightedSum,
    as_reward_source,
    checked_scores,
    own_copies,
    responses_per_prompt,
    reward_function_named,
)
from rlcore.rollout.prompts import EncodedPrompt

MAX_SCORE = 1e15
"""Largest score, either sign, in reward units. Errors of the critic are squared: larger ones would leave float32."""

Reward = RewardSource | Callable[..., Any] | nn.Module | RLEnvironment | str | Path | Mapping[str, Any]
"""What `reward_source_of` understands."""

ACCEPTED = (
    "a function of (prompts, responses, metadata=None) or of (prompt, generated, full_text), the name of a built-in "
    f"one ({', '.join(REWARD_FUNCTIONS)}) or module:function, a reward model or its folder, an environment, or a "
    "mapping from names to any of these"
)


@runtime_checkable
class HasParts(Protocol):
    """A reward source that can say of what its scores are made."""

    def parts(
        self, prompts: Sequence[str], responses: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, list[float]]:
        """By name, one unweighted score for each response; empty where there is nothing to tell."""
        ...


def reward_source_of(
    reward: Reward | None,
    tokenizer: PreTrainedTokenizerBase,
    weights: Mapping[str, float] | None = None,
    check: ScoreCheck = checked_scores,
    device: str | None = None,
) -> RewardSource:
    """A reward source from any form in which people give one.

    | given | scored by |
    |---|---|
    | None | `length_score`: min(words / 50, 1) |
    | function, or any object that is called like one | as_reward_source, which see for the forms |
    | text | a name in REWARD_FUNCTIONS, `module:function`, a folder, a file, or a hub name `owner/name` |
    | folder, file or hub name | RewardModelSource, or ClassifierSource for a Hugging Face classifier with one label |
    | RewardModel, of one or several objectives | RewardModelSource with the policy's tokenizer |
    | environment | EnvironmentReward |
    | mapping | WeightedSum of its values, each of any form above |

    Args:
        reward: what scores.
        tokenizer: of the policy.
        weights: weights of a mapping by name; one that is not given is 1.
        check: what is made of the scores of functions.
        device: where models that are loaded go; None takes a GPU where there is one.

    Raises:
        ConfigError: none of these forms, weights without a mapping, or a function that takes other parameters.
        CheckpointError: the folder or file holds no whole reward model.
    """
    if isinstance(reward, Mapping):
        sources = {name: reward_source_of(part, tokenizer, check=check, device=device) for name, part in reward.items()}
        return WeightedSum(sources, weights, check)
    if weights is not None:
        raise ConfigError(
            f"Found reward weights for {', '.join(weights) or 'nothing'} and one reward, {reward!r}. "
            "Pass a mapping of named rewards, or leave the weights out."
        )
    if reward is None:
        return REWARD_FUNCTIONS["default"]
    if isinstance(reward, WeightedSum | EnvironmentReward | RewardModelSource | ClassifierSource):
        return reward
    if isinstance(reward, str | Path):
        return _named(reward, device)
    if isinstance(reward, nn.Module):
        return _model(reward, tokenizer)
    is_class = isinstance(reward, type)
    if not is_class and (isinstance(reward, RLEnvironment) or hasattr(reward, "score_responses")):
        return EnvironmentReward(cast(RLEnvironment, reward), tokenizer)
    if not is_class and callable(reward):
        return as_reward_source(reward, check=check)
    raise ConfigError(f"Found {reward!r} as reward, expected {ACCEPTED}.")


def rivals(reward: RewardSource, prompts: Sequence[EncodedPrompt]) -> list[str] | None:
    """What marks the rows that a source wants to see together: the prompt's text where it compares, else None."""
    return [prompt.text for prompt in prompts] if responses_per_prompt(reward) > 1 else None


def require_own_scores(reward: RewardSource) -> None:
    """Let a source pass whose scores of single responses can tell one policy from another.

    Raises:
        ConfigError: it compares the responses to one prompt.
    """
    if responses_per_prompt(reward) > 1:
        raise ConfigError(
            "Found validation prompts and a reward that compares the responses to one prompt, whose mean is 0 whatever "
            "the policy, expected scores of their own. Leave the validation prompts out, or pass a reward model."
        )


def score_responses(
    reward: RewardSource, prompts: Sequence[EncodedPrompt], responses: Sequence[str], check: ScoreCheck = checked_scores
) -> tuple[list[float], dict[str, list[float]]]:
    """Ask the reward source, about copies that it may change, and check what it says.

    Returns:
        one score for each response, in reward units, and by name the unweighted scores of which they are made; none of
        the latter for a single source.

    Raises:
        DataError: see accepted_scores.
    """
    if not responses:
        return [], {}
    name = getattr(reward, "__name__", type(reward).__name__)
    count = len(responses)
    asked = [prompt.text for prompt in prompts], responses, [dict(prompt.metadata) for prompt in prompts]
    parts: dict[str, list[float]] = reward.parts(*own_copies(*asked)) if isinstance(reward, HasParts) else {}
    returned = reward.total(parts) if isinstance(reward, WeightedSum) else reward(*own_copies(*asked))
    return accepted_scores(returned, count, name, check), parts


def accepted_scores(returned: Any, count: int, source: str, check: ScoreCheck) -> list[float]:
    """The scores of one source, checked, and none of them beyond MAX_SCORE.

    Args:
        returned: by the source.
        count: of the responses.
        source: what errors call it.
        check: what is made of the scores.

    Raises:
        DataError: wrong count, a score that the check refuses, or one beyond MAX_SCORE; names the source and the first
            faulty row.
    """
    scores = check(returned, count, source)
    for row, score in enumerate(scores):
        if abs(score) > MAX_SCORE:
            raise DataError(
                f"{source}, response {row}, returned {score!r}, expected at most {MAX_SCORE:g} either way: the squared "
                "errors of larger ones leave float32. Scale the scores."
            )
    return scores


def _named(name: str | Path, device: str | None) -> RewardSource:
    if isinstance(name, str) and (name in REWARD_FUNCTIONS or ":" in name):
        return reward_function_named(name)
    is_hub_name = str(name).count("/") == 1
    if not str(name).strip() or not (Path(name).exists() or is_hub_name):
        raise ConfigError(f"Found {str(name)!r} as reward, which is no folder. Expected {ACCEPTED}.")
    return reward_model_source(name, device=device)


def _model(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> RewardSource:
    if not isinstance(model, RewardModel):
        raise ConfigError(
            f"Found a {type(model).__name__} as reward, expected a RewardModel. Wrap it in a function: {ACCEPTED}."
        )
    return RewardModelSource(model, tokenizer)
