"""What a policy that samples is asked, and what scores its answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import DatasetDict

from rlcore.errors import ConfigError
from rlcore.results import RewardSource
from rlcore.reward import RewardModelSource
from rlcore.reward_functions import as_reward_source
from tasks.demos import is_checker, named_function
from tasks.records.artifacts import Split
from tasks.records.parameters import load_parameters
from tasks.rows import seeing_rows, training_splits, with_whole_rows


def prompts_and_reward(
    prompts: Mapping[Split, Path], reward_model: Path, device: str | None
) -> tuple[DatasetDict, RewardSource]:
    """Prompts to train on, and the reward source: the reward model, or what `reward_function` in params.yaml names.

    A reward model reads prompts and responses. A function gets the whole rows of the prompts as metadata, answers
    included where they have some; it has a form of `as_reward_source`, or that of a checker.

    Args:
        prompts: file of each split.
        reward_model: its folder.
        device: of the reward model; None takes a GPU where there is one.

    Raises:
        ConfigError: `reward_function` names no function, or one of another form. The source raises it for a checker
            that does not measure gold.
        DataError: a file is missing or has faulty rows.
    """
    tables = training_splits(prompts, ("prompt",))
    name = load_parameters().reward_function
    if name is None:
        return tables, RewardModelSource(reward_model, device=device)
    function = named_function("reward_function", name)
    reward = as_reward_source(_gold_of(function, name) if is_checker(function) else function, name)
    return with_whole_rows(tables, prompts), seeing_rows(reward)


def _gold_of(checker: Callable[..., Mapping[str, float]], name: str) -> Callable[..., list[float]]:
    """A checker as a reward function: its measure `gold`. It is asked as if every response had ended by itself.

    For those that were cut there is `missing_eos_score`.
    """

    def reward(prompts: Sequence[str], responses: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
        checks = [checker(row, response, True) for row, response in zip(metadata, responses, strict=True)]
        for check in checks:
            if "gold" not in check:
                raise ConfigError(
                    f"reward_function: {name} measured {', '.join(check) or 'nothing'}, expected gold. Return the key "
                    "gold too, or name a function of prompts, responses and metadata."
                )
        return [check["gold"] for check in checks]

    return reward
