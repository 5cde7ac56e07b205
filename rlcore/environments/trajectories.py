"""One episode of an environment, played by a policy."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlcore.environments.base import Observation, RLEnvironment, Trajectory
from rlcore.errors import ConfigError
from rlcore.reward_functions import checked_number

Policy = Callable[[Observation], tuple[Tensor, Tensor]]
"""From an observation to an action, as the environment takes it, and the log-probability of the action in nats."""


def play(environment: RLEnvironment, policy: Policy, *, max_steps: int) -> Trajectory:
    """Reset the environment and let the policy act until the episode ends, or for max_steps steps.

    No gradient is recorded.

    Raises:
        ConfigError: max_steps < 1.
        DataError: a reward is no finite number.
    """
    if max_steps < 1:
        raise ConfigError(f"max_steps={max_steps}: expected at least 1.")
    trajectory = Trajectory(observations=[], actions=[], rewards=[], logprobs=[], done=False, total_reward=0.0)
    observation: Observation | None = environment.reset()
    with torch.no_grad():
        while observation is not None and not trajectory.done and len(trajectory.actions) < max_steps:
            action, logprob = policy(observation)
            result = environment.step(action)
            trajectory.observations.append(observation)
            trajectory.actions.append(torch.as_tensor(action))
            trajectory.logprobs.append(torch.as_tensor(logprob))
            trajectory.rewards.append(checked_number(result.reward, f"Step {len(trajectory.actions)}"))
            trajectory.done = result.done
            trajectory.metrics = dict(result.metrics)
            observation = result.next_observation
    trajectory.total_reward = sum(trajectory.rewards)
    return trajectory
