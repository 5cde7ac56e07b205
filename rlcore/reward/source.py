"""A reward model as a reward source: texts in, scores out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.models import choose_device
from rlcore.reward.files import load_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.multi_objective import MultiObjectiveRewardModel
from rlcore.reward.pairs import encode
from rlcore.reward.texts import score_rows
from rlcore.reward_functions import checked_counts


class RewardModelSource:
    """Scores responses with a reward model of any kind; several objectives count by their weighted sum.

    Every response is closed with the end token, also one that a length limit cut: the model was trained on closed ones.
    A score depends on its own prompt and response only, up to rounding; equal ones of a call have equal scores.

    Args:
        path_or_model: folder or file that a reward model was saved in, or the model.
        tokenizer: of the model; None reads it from the folder or file.
        batch_size: responses scored at once.
        device: where to put the model; None takes a GPU where there is one, and leaves a model that was passed where it
            is.

    Raises:
        CheckpointError: the folder or file holds no whole reward model.
        ConfigError: the model gives more than one reward, the tokenizer of a model was not passed, or batch_size < 1.
    """

    def __init__(
        self,
        path_or_model: str | Path | RewardModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        batch_size: int = 64,
        device: str | None = None,
    ):
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: expected at least 1.")
        if isinstance(path_or_model, RewardModel):
            model = path_or_model
            if device is not None:
                model.to(choose_device(device))
        else:
            model, own_tokenizer = load_reward_model(path_or_model)
            model.to(choose_device(device))
            tokenizer = tokenizer or own_tokenizer
        if tokenizer is None:
            raise ConfigError("Found a model without its tokenizer. Pass the tokenizer, or the model's folder.")
        model.require_scalar()
        self.model = model
        self.chat = ChatFormat(tokenizer)
        self.batch_size = batch_size

    def __call__(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        """One score for each response, in the order given. The metadata is not read.

        Raises:
            DataError: the numbers of prompts and responses differ, or a response is no text.
        """
        return self._asked(self.model.scores, prompts, responses, metadata)

    def parts(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, list[float]]:
        """By name, `objective_<k>`, the rewards that a multi-objective model weighs; none for other models.

        Raises:
            DataError: see __call__.
        """
        if not isinstance(self.model, MultiObjectiveRewardModel):
            return {}
        rows = self._asked(self.model.objectives, prompts, responses, metadata)
        return {f"objective_{k}": [row[k] for row in rows] for k in range(self.model.num_objectives)}

    def _asked(
        self,
        score: Callable[[Tensor, Tensor], Tensor],
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        metadata: Sequence[Mapping[str, Any]] | None,
    ) -> list[Any]:
        checked_counts(prompts, responses, metadata)
        rows = encode(self.chat, prompts, responses, self.model.max_length)
        return score_rows(self.model, score, rows, pad_id=self.chat.pad_id, batch_size=self.batch_size)
