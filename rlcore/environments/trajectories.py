"""One episode of an environment, played by a policy."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.environments.base import Observation, RLEnvironment, Trajectory
from rlcore.errors import ConfigError
from rlcore.reward_functions import checked_number
from rlcore.streams import stream_seed

if TYPE_CHECKING:
    from rlcore.models import CausalLM

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


def lm_policy(model: "CausalLM", *, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> Policy:
    """A causal language model as the policy of an environment whose actions are single tokens.

    Each action is one token, sampled at the temperature in the observation's metadata (1 where there is none). Its
    log-probability is of the whole distribution at that temperature, not of what top_k and top_p left of it, and of
    temperature 1 where it is 0. Every observation is read anew: right for looking at episodes, slow for training.

    Args:
        model: language model of the tokenizer that the environment has.
        top_k, top_p: see rlcore.sampling.SamplingParams.
        seed: of the tokens. The n-th call of an equally seeded policy draws the same number.

    Raises:
        ConfigError: top_k or top_p is out of range. The policy raises DataError for an observation that is longer than
            the model's context allows.
    """
    # Loads peft, which takes seconds; whoever holds a model has loaded it.
    from rlcore.sampling import SamplingParams, generate

    calls = count()
    settings = SamplingParams(max_new_tokens=1, top_k=top_k, top_p=top_p)

    def policy(observation: Observation) -> tuple[Tensor, Tensor]:
        params = replace(settings, temperature=observation.metadata.get("temperature", 1.0))
        seeds = [stream_seed(seed, "episode", next(calls))]
        samples = generate(model, observation.input_ids.tolist(), params, seeds=seeds, end_ids=[], pad_id=0)
        return samples.response_ids[0, 0], samples.logprobs[0, 0]

    return policy
