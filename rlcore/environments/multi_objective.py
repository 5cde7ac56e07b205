"""Text generation with several rewards and a weight for each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import Observation, RLEnvironment, StepResult
from rlcore.environments.text_episode import TextEpisode
from rlcore.environments.text_generation import text_step
from rlcore.errors import ConfigError
from rlcore.reward_functions import checked_counts, checked_number, checked_weights

RewardComponent = Callable[[str, str, str], float]
"""Called by position with prompt, generated text, and the two together."""

SETTINGS = ("max_length", "stop_sequences", "temperature")


class MultiObjectiveRewardEnv(RLEnvironment):
    """A TextGenerationEnv whose reward is the sum of weight * component.

    Args:
        tokenizer: of the policy.
        prompts: texts, played in turn.
        reward_components: functions by name, called as component(prompt, generated, full_text).
        reward_weights: weight of each; 1.0 where none is given.
        **kwargs: max_length, stop_sequences and temperature, as for TextGenerationEnv.

    Attributes:
        reward_weights: a weight for every component.

    Raises:
        ConfigError: no component, one named `total`, a weight of an unknown component, an unknown setting, or a value
            out of range.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        reward_components: Mapping[str, RewardComponent],
        reward_weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        unknown = sorted(set(kwargs) - set(SETTINGS))
        if unknown:
            raise ConfigError(
                f"Found the settings {', '.join(unknown)}, expected {', '.join(SETTINGS)}. "
                "A further reward function goes into reward_components."
            )
        if "total" in reward_components:
            raise ConfigError("Found a component `total`, which names the metric of the sum. Rename the component.")
        self.reward_components = dict(reward_components)
        self.reward_weights = checked_weights(self.reward_components, reward_weights)
        self._episode = TextEpisode(tokenizer, prompts, **kwargs)
        self.tokenizer = tokenizer
        self.prompts = self._episode.cycle.prompts
        self.max_length = self._episode.max_length

    def reset(self, prompt: str | None = None) -> Observation:
        """Begin a response to the next prompt, or to a given one; see TextGenerationEnv.reset."""
        return self._episode.start(prompt)

    def step(self, action: Tensor | int) -> StepResult:
        """Append one token; see TextGenerationEnv.step.

        Returns:
            as there. At the end the metrics also hold `reward_<name>`, each component without its weight, and
            `reward_total`, which is the reward.

        Raises:
            RLCoreError, DataError: as there. The error names the component.
        """
        if not self._episode.append(action):
            return text_step(self._episode, False, 0.0, {})
        prompt, generated = self._episode.prompt, self._episode.generated
        total, components = self.compute_multi_objective_reward(prompt, generated, prompt + generated)
        metrics = {f"reward_{name}": score for name, score in components.items()}
        return text_step(self._episode, True, total, {**metrics, "reward_total": total})

    def render(self) -> str:
        """Prompt, generated text and number of steps, one line each."""
        return self._episode.render()

    def compute_multi_objective_reward(
        self, prompt: str, generated: str, full_text: str
    ) -> tuple[float, dict[str, float]]:
        """The weighted sum, and each component without its weight.

        Raises:
            DataError: a component returned no finite number. Names it.
        """
        components = {
            name: checked_number(component(prompt, generated, full_text), f"Reward component {name}")
            for name, component in self.reward_components.items()
        }
        return sum(self.reward_weights[name] * score for name, score in components.items()), components

    def score_responses(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        """Rewards of whole responses; see TextGenerationEnv.score_responses."""
        checked_counts(prompts, responses, metadata)
        texts = [self._episode.before_stop(response)[0] for response in responses]
        return [
            self.compute_multi_objective_reward(prompt, text, prompt + text)[0]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
