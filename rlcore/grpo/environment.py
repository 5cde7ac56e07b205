"""An environment of one's own as data set and as judge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from rlcore.environments import EpisodeEnvironment
from rlcore.errors import DataError
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import language_model_of
from rlcore.rollout import EncodedPrompt
from rlcore.rollout.turns import Episode


def environment_rows(environment: EpisodeEnvironment, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The rows of an environment's data set, each with `prompt` and `case_idx`.

    Raises:
        DataError: it is no data set with the column `prompt`.
    """
    source = f"{type(environment).__name__}.build_dataset"
    rows = environment.build_dataset(tokenizer)
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise DataError(f"{source} returned {type(rows).__name__}, expected a data set with the column `prompt`.")
    listed = list(rows)
    for index, row in enumerate(listed):
        if not isinstance(row, Mapping) or "prompt" not in row:
            found = sorted(row) if isinstance(row, Mapping) else repr(row)
            raise DataError(f"{source}, row {index}: found {found}, expected the column `prompt`. Name it so.")
    return [{"case_idx": index, **row} for index, row in enumerate(listed)]


def with_case_idx(prompts: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    """The prompts with a `case_idx` in their metadata: that of their row, or their number.

    Raises:
        DataError: a `case_idx` is no integer.
    """
    numbered = [
        replace(prompt, metadata={"case_idx": index, **prompt.metadata}) for index, prompt in enumerate(prompts)
    ]
    for index, prompt in enumerate(numbered):
        if type(prompt.metadata["case_idx"]) is not int:
            raise DataError(f"Row {index}: found case_idx={prompt.metadata['case_idx']!r}, expected an integer.")
    return numbered


def episode_scores(
    environment: EpisodeEnvironment,
    client: AsyncTrainingClient,
    tokenizer: PreTrainedTokenizerBase,
    cases: Sequence[EncodedPrompt],
    episodes: Sequence[Episode],
) -> list[float | None]:
    """What the environment says about each episode, one after another, in the client's thread."""

    def score(model: nn.Module) -> list[float | None]:
        policy = language_model_of(model)
        return [
            environment.score_episode(policy, tokenizer, completion_of(case, episode), case.metadata["case_idx"])
            for case, episode in zip(cases, episodes, strict=True)
        ]

    return client.evaluate(score).result()


def completion_of(case: EncodedPrompt, episode: Episode) -> str | list[dict[str, str]]:
    """What the environment scores: text behind a text prompt, messages behind chat messages."""
    return episode.text if isinstance(case.prompt, str) else [dict(message) for message in episode.messages]
