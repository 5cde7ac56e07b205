"""An environment as a reward source: the responses of a trainer are its episodes."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import RLEnvironment
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.results import RewardSource
from rlcore.reward_functions import checked_counts, checked_number, checked_scores


class EnvironmentReward:
    """Scores responses with an environment.

    An environment with a method `score_responses(prompts, responses, metadata)`, as all of this library have, is asked
    at once. Any other is played: `reset(prompt=...)`, then one step for each token of the response and its end token;
    the score is the sum of the rewards up to the step that ends the episode.

    Args:
        environment: what scores.
        tokenizer: of the policy; needed to play.

    Raises:
        ConfigError: the environment has to be played, and there is no tokenizer or its reset() takes no `prompt`.
    """

    def __init__(self, environment: RLEnvironment, tokenizer: PreTrainedTokenizerBase | None = None):
        self.environment = environment
        self.__name__ = type(environment).__name__
        self.responses_per_prompt: int = getattr(environment, "responses_per_prompt", 1)
        self._source: RewardSource | None = getattr(environment, "score_responses", None)
        self._chat = None if tokenizer is None else ChatFormat(tokenizer)
        if self._source is None:
            _check_playable(environment, tokenizer)

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        """One score for each response, in the order given.

        Raises:
            DataError: the numbers of rows differ, a score is no finite number, or an episode did not end with the
                response.
        """
        checked_counts(prompts, responses, metadata)
        if self._source is not None:
            return checked_scores(self._source(prompts, responses, metadata), len(responses), self.__name__)
        return [self._play(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def _play(self, prompt: str, response: str) -> float:
        chat = cast(ChatFormat, self._chat)
        cast(Any, self.environment).reset(prompt=prompt)
        total = 0.0
        for token in [*chat.encode_response(response), chat.end_id]:
            result = self.environment.step(torch.tensor(token))
            total += checked_number(result.reward, self.__name__)
            if result.done:
                return total
        raise DataError(
            f"{self.__name__} went on after the end token of {response[:60]!r}. An episode has to end with it at last."
        )


def _check_playable(environment: RLEnvironment, tokenizer: PreTrainedTokenizerBase | None) -> None:
    name = type(environment).__name__
    if not isinstance(environment, RLEnvironment):
        raise ConfigError(f"Found {name}, expected an environment: a subclass of RLEnvironment.")
    if tokenizer is None:
        raise ConfigError(f"{name} has no score_responses() and has to be played. Pass the tokenizer of the policy.")
    if "prompt" not in inspect.signature(environment.reset).parameters:
        raise ConfigError(
            f"{name}.reset{inspect.signature(environment.reset)} takes no prompt, so the environment would judge "
            "another prompt than the one answered. Let it take `prompt: str | None = None`."
        )
