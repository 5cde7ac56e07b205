"""Two responses to one prompt, and which of them is preferred."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlcore.environments.base import Observation, RLEnvironment, StepResult
from rlcore.environments.text_episode import PromptCycle, observe, require_running, token_ids
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.results import RewardSource
from rlcore.reward_functions import checked_counts, checked_number

Preference = Callable[[str, str, str], float]
"""Called with prompt, first and second response: above 0 where the first is preferred, 0 for a tie."""


class PreferenceComparisonEnv(RLEnvironment):
    """Two steps, a whole response each; the reward of the second is the preference for the first response.

    Two equal responses are a tie, 0.0, and nobody is asked.

    Args:
        tokenizer: of the policy, and of the preference model.
        prompts: texts, played in turn.
        preference_model: a RewardModel (the difference of the two rewards), or a function(prompt, first, second) that
            returns a number above 0 where the first is preferred. A model is asked without dropout.
        human_feedback_fn: such a function, asked where there is no model.
        max_length: tokens of prompt and response that the policy and the model see at most.

    Raises:
        ConfigError: there is neither a model nor a function, the model is neither a reward model nor a function,
            there is no prompt, or max_length < 2.
    """

    responses_per_prompt = 2
    """What score_responses needs at least."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        preference_model: nn.Module | Preference | None = None,
        human_feedback_fn: Preference | None = None,
        max_length: int = 512,
    ):
        judge = human_feedback_fn if preference_model is None else preference_model
        if judge is None:
            raise ConfigError("Found nobody who prefers. Pass preference_model or human_feedback_fn.")
        if max_length < 2:
            raise ConfigError(f"max_length={max_length}: expected at least 2, one token each of prompt and response.")
        self._chat = ChatFormat(tokenizer)
        self._cycle = PromptCycle(prompts)
        self._prefer = _preference_of(judge, self._chat, max_length)
        self.tokenizer = tokenizer
        self.prompts = self._cycle.prompts
        self.max_length = max_length
        self.responses: list[str] = []
        self._running = False
        self._prompt, self._prompt_index = "", 0

    def reset(self) -> Observation:
        """Begin with the next prompt. The metadata holds `prompt_idx` and `comparison_round`, the responses so far."""
        self._prompt_index, self._prompt = self._cycle.next()
        self.responses = []
        self._running = True
        return self._observation()

    def step(self, action: Tensor | Sequence[int]) -> StepResult:
        """Give a response.

        Args:
            action: all token ids of the response: a list, or an integer tensor [T] or [1, T].

        Returns:
            first reward 0.0 and the prompt once more, then the preference and the end. Info `responses`, their texts;
            metrics `reward` and `num_responses`.

        Raises:
            RLCoreError: reset() has not been called since the second response.
            DataError: no token, one that is none of the tokenizer, or a preference that is no finite number.
        """
        require_running(self._running)
        ids = token_ids(action, len(self.tokenizer))
        if not ids:
            raise DataError("Found a response without a token. An empty response consists of its end token.")
        self.responses.append(self._chat.decode_response(ids))
        done = len(self.responses) == 2
        self._running = not done
        reward = self.preference(self._prompt, *self.responses) if done else 0.0
        return StepResult(
            reward=reward,
            done=done,
            next_observation=None if done else self._observation(),
            info={"responses": list(self.responses)},
            metrics={"reward": reward, "num_responses": len(self.responses)},
        )

    def render(self) -> str:
        """The prompt and the responses so far, one line each."""
        responses = [f"Response {number}: {text}" for number, text in enumerate(self.responses, start=1)]
        return "\n".join([f"Prompt: {self._prompt}", *responses])

    def preference(self, prompt: str, first: str, second: str) -> float:
        """How much the first response is preferred to the second; 0.0 where they are equal.

        Raises:
            DataError: the model or function returned no finite number.
        """
        return 0.0 if first == second else checked_number(self._prefer(prompt, first, second), "The preference")

    def score_responses(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        """For each response, its mean preference over the other responses to the same prompt in this call.

        Raises:
            DataError: the numbers of rows differ, a prompt has one response only, or a preference is no finite number.
        """
        checked_counts(prompts, responses, metadata)
        return [self._mean_preference(row, prompts, responses) for row in range(len(responses))]

    def _mean_preference(self, row: int, prompts: Sequence[str], responses: Sequence[str]) -> float:
        prompt = prompts[row]
        rivals = [other for other, its_prompt in enumerate(prompts) if its_prompt == prompt and other != row]
        if not rivals:
            raise DataError(
                f"Prompt {row} has one response, expected at least two to compare. Sample several for each prompt, or "
                "score with a reward model."
            )
        return sum(self.preference(prompt, responses[row], responses[other]) for other in rivals) / len(rivals)

    def _observation(self) -> Observation:
        metadata = {"prompt_idx": self._prompt_index, "comparison_round": len(self.responses)}
        return observe(self._chat.encode_prompt(self._prompt), self.max_length, self._prompt, metadata)


def preference_by_score(source: RewardSource) -> Preference:
    """The difference of the scores of a reward source, such as a reward model with a tokenizer of its own."""

    def prefer(prompt: str, first: str, second: str) -> float:
        better, worse = source([prompt, prompt], [first, second])
        return better - worse

    return prefer


def _preference_of(judge: Any, chat: ChatFormat, max_length: int) -> Preference:
    if not callable(judge):
        raise ConfigError(f"Found {judge!r} as the judge of responses, expected a reward model or a function.")
    return _model_preference(judge, chat, max_length) if isinstance(judge, nn.Module) else cast(Preference, judge)


def _model_preference(judge: Any, chat: ChatFormat, max_length: int) -> Preference:
    # Loads peft, which takes seconds; whoever holds a reward model has loaded it.
    from rlcore.models import evaluation_mode

    if not hasattr(judge, "scores"):
        raise ConfigError(
            f"preference_model: found {type(judge).__name__}, expected a RewardModel or a "
            "function(prompt, first, second). Wrap other models in a function."
        )
    limit = min(max_length, getattr(judge, "max_length", max_length))

    def encoded(prompt: str, response: str) -> tuple[Tensor, Tensor]:
        # The model sees what it was trained on: the whole response with its end token, the end of the prompt.
        ids, response_ids = chat.encode_pair(prompt, response, max_length=limit, max_prompt_length=1)
        device = next(judge.parameters(), torch.empty(0)).device
        input_ids = torch.tensor([ids + response_ids], device=device)
        return input_ids, torch.ones_like(input_ids)

    def prefer(prompt: str, first: str, second: str) -> float:
        with torch.inference_mode(), evaluation_mode(judge):
            # Each alone, so that neither is padded to the length of the other.
            return float(judge.scores(*encoded(prompt, first)) - judge.scores(*encoded(prompt, second)))

    return prefer
