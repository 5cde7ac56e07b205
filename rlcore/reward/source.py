"""A reward model as a reward source: texts in, scores out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlcore.batches import right_pad
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.models import choose_device, evaluation_mode
from rlcore.reward.files import load_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.pairs import encode


class RewardModelSource:
    """Scores responses with a reward model.

    Every response is closed with the end token, also one that a length limit cut: the model was trained on closed ones.
    A score depends on its own prompt and response only, up to rounding.

    Args:
        folder_or_model: folder that `save_reward_model` wrote, or the model.
        tokenizer: of the model; None reads it from the folder.
        batch_size: responses scored at once.
        device: where to put the model; None takes a GPU where there is one, and leaves a model that was passed where it
            is.

    Raises:
        CheckpointError: the folder holds no whole reward model.
        ConfigError: the model has more than one output, the tokenizer of a model was not passed, or batch_size < 1.
    """

    def __init__(
        self,
        folder_or_model: str | Path | RewardModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        batch_size: int = 64,
        device: str | None = None,
    ):
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: expected at least 1.")
        if isinstance(folder_or_model, RewardModel):
            model = folder_or_model
            if device is not None:
                model.to(choose_device(device))
        else:
            model, own_tokenizer = load_reward_model(Path(folder_or_model))
            model.to(choose_device(device))
            tokenizer = tokenizer or own_tokenizer
        if tokenizer is None:
            raise ConfigError("Found a model without its tokenizer. Pass the tokenizer, or the model's folder.")
        if model.config.num_labels != 1:
            raise ConfigError(
                f"The reward head has shape {tuple(model.head.weight.shape)}, expected (1, hidden size): "
                f"num_labels={model.config.num_labels} gives no scalar reward. Train with num_labels=1."
            )
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
        if len(prompts) != len(responses):
            raise DataError(
                f"Found {len(prompts)} prompts and {len(responses)} responses. Pass one response for each prompt."
            )
        rows = encode(self.chat, prompts, responses, self.model.max_length)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        device = self.model.head.weight.device
        scores = [0.0] * len(rows)
        with torch.inference_mode(), evaluation_mode(self.model):
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                input_ids, mask = right_pad([rows[index] for index in batch], self.chat.pad_id)
                batch_scores = self.model.scores(input_ids.to(device), mask.to(device)).tolist()
                for index, score in zip(batch, batch_scores, strict=True):
                    scores[index] = score
        return scores
