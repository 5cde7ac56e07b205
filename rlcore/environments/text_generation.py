"""Text generation as an environment: one token a step, one reward at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import Observation, RLEnvironment, StepResult
from rlcore.environments.text_episode import TextEpisode
from rlcore.reward_functions import REWARD_FUNCTIONS, as_reward_source, checked_counts


class TextGenerationEnv(RLEnvironment):
    """Responses to prompts in turn; the reward comes with the step that ends the response.

    A response ends with the end token, with a stop string in the generated text, or with max_length tokens. Stop
    strings count across token borders, not in the prompt, and are not part of the generated text.

    Args:
        tokenizer: of the policy.
        prompts: texts, played in turn.
        max_length: longest response, in tokens. An observation keeps the newest max_length tokens.
        reward_fn: a reward function of any form of `reward_functions.as_reward_source`, such as
            (prompt, generated, full_text), full_text being the prompt followed by the generated text. By default
            min(words / 50, 1) of the generated text.
        stop_sequences: texts that end a response.
        temperature: what the policy should sample at; `metadata["temperature"]` of every observation.

    Raises:
        ConfigError: there is no prompt, one is empty, a setting is out of range, or the reward function has another
            form.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        max_length: int = 512,
        reward_fn: Callable[..., float] | None = None,
        stop_sequences: Sequence[str] | None = None,
        temperature: float = 1.0,
    ):
        self._episode = TextEpisode(tokenizer, prompts, max_length, stop_sequences, temperature)
        self.tokenizer = tokenizer
        self.prompts = self._episode.cycle.prompts
        self.max_length = max_length
        self.reward_fn = REWARD_FUNCTIONS["default"] if reward_fn is None else reward_fn
        self._source = as_reward_source(self.reward_fn, "The reward function of the environment")
        self.stop_sequences = self._episode.stop_sequences
        self.temperature = temperature

    def reset(self, prompt: str | None = None) -> Observation:
        """Begin a response to the next prompt, or to a given one, which leaves the turn where it is.

        The metadata holds `prompt_idx` (None for a given prompt), `steps` and `temperature`.

        Raises:
            DataError: the given prompt is no text or empty, or holds a lone surrogate.
        """
        return self._episode.start(prompt)

    def step(self, action: Tensor | int) -> StepResult:
        """Append one token. The first step of all begins the first response by itself.

        Args:
            action: token id: an int, or an integer tensor of shape () or [1].

        Returns:
            reward 0.0 until the response ends; info `generated_text` and `steps`; metrics `reward`, the same number,
            and `length`, in tokens.

        Raises:
            RLCoreError: reset() has not been called since the last response ended.
            DataError: the action is not one token of the tokenizer, or the reward no finite number.
        """
        done = self._episode.append(action)
        reward = self._source([self._episode.prompt], [self._episode.generated])[0] if done else 0.0
        return text_step(self._episode, done, reward, {})

    def render(self) -> str:
        """Prompt, generated text and number of steps, one line each."""
        return self._episode.render()

    def score_responses(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        """Rewards of whole responses, up to their stop string; neither tokens nor the running episode are touched.

        Raises:
            DataError: the numbers of rows differ, a response is no text, or a reward is no finite number.
        """
        checked_counts(prompts, responses, metadata)
        return self._source(prompts, [self._episode.before_stop(response)[0] for response in responses], metadata)


def text_step(episode: TextEpisode, done: bool, reward: float, metrics: Mapping[str, float]) -> StepResult:
    """The result of a step in a text episode, with further metrics."""
    return StepResult(
        reward=reward,
        done=done,
        next_observation=None if done else episode.observation(),
        info={"generated_text": episode.generated, "steps": episode.steps},
        metrics={"reward": reward, "length": episode.steps, **metrics},
    )
