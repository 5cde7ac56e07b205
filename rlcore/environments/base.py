"""What an environment is: observations go out, actions come in, rewards are paid."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


# Not comparable by value: `==` on tensors gives tensors.
@dataclass(eq=False)
class Observation:
    """What a policy sees.

    Attributes:
        input_ids: int64 [1, L], the prompt and what was generated so far; no padding.
        attention_mask: int64 [1, L], all 1.
        prompt: text of the prompt.
        metadata: what the environment adds; see there.
    """

    input_ids: Tensor
    attention_mask: Tensor
    prompt: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class StepResult:
    """What one action brought.

    Attributes:
        reward: reward of this step.
        done: whether the episode has ended.
        next_observation: what the policy sees next; None once the episode has ended.
        info: texts and other facts.
        metrics: numbers.
    """

    reward: float
    done: bool
    next_observation: Observation | None = None
    info: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Trajectory:
    """One episode, step by step.

    Attributes:
        observations: what the policy saw before each action.
        actions: what it did.
        rewards: reward of each step.
        logprobs: log-probability of each action in nats, as the policy reported it.
        done: whether the episode ended; False where the number of steps was limited.
        total_reward: sum of the rewards.
        metrics: metrics of the last step.
    """

    observations: list[Observation]
    actions: list[Tensor]
    rewards: list[float]
    logprobs: list[Tensor]
    done: bool
    total_reward: float
    metrics: dict[str, Any] = field(default_factory=dict)


class RLEnvironment(ABC):
    """An environment for one policy.

    An environment of one's own that rewards a trainer's responses lets `reset` take the prompt, see EnvironmentReward.
    """

    @abstractmethod
    def reset(self) -> Observation:
        """Begin an episode."""

    @abstractmethod
    def step(self, action: Tensor) -> StepResult:
        """Act once. After the step that ends an episode, reset comes first."""

    @abstractmethod
    def render(self) -> str:
        """The state of the episode as text."""
