"""A sequence classifier of the Hugging Face kind as a reward source: any folder with one label scores responses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.functional.masking import pool_last
from rlcore.models import choose_device, load_tokenizer
from rlcore.results import RewardSource
from rlcore.reward.body import ForwardArguments, load_complete, refuse_encoder_decoder
from rlcore.reward.files import is_reward_model
from rlcore.reward.pairs import encode
from rlcore.reward.source import RewardModelSource
from rlcore.reward.texts import score_rows
from rlcore.reward_functions import checked_counts

MAX_LENGTH = 4096
"""Tokens that are read of a prompt and its response by a model that names no limit."""


class ClassifierSource:
    """Scores responses with `AutoModelForSequenceClassification` and one label: the score is the logit.

    Prompt and response are written by the chat format, with the end token behind the response; a long prompt loses its
    beginning. The score is the one that the model gives to the row alone: neither padding nor batch mates change it
    beyond rounding.

    Args:
        folder: model folder or hub name, with its tokenizer.
        batch_size: responses scored at once.
        device: where to put the model; None takes a GPU where there is one.

    Attributes:
        model: in evaluation mode, with a padding token in its config.
        chat: how its tokenizer writes a prompt and a response.

    Raises:
        ConfigError: the model has another number of labels than 1 or is an encoder-decoder, the folder holds no
            classifier or no usable tokenizer, or batch_size < 1.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """

    def __init__(self, folder: str | Path, batch_size: int = 64, device: str | None = None):
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: expected at least 1.")
        self.batch_size = batch_size
        self.model = load_complete(AutoModelForSequenceClassification, folder)
        refuse_encoder_decoder(self.model)
        _require_one_label(folder, self.model)
        nn.Module.to(self.model.eval(), choose_device(device))
        self.chat = ChatFormat(load_tokenizer(folder))
        self._arguments = ForwardArguments(cast(PreTrainedModel, self.model.base_model))
        self.max_length = self._arguments.max_length or MAX_LENGTH
        config = self.model.config.get_text_config()
        # Which tokens the model's own pooling passes over. Without a padding token of its own it reads the last one.
        self._passed_over: int | None = config.pad_token_id
        if config.pad_token_id is None:
            config.pad_token_id = self.chat.pad_id

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
        checked_counts(prompts, responses, metadata)
        rows = encode(self.chat, prompts, responses, self.max_length)
        return score_rows(self.model, self._scores, rows, pad_id=self.chat.pad_id, batch_size=self.batch_size)

    def _scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores [B] of right-padded rows [B, L]."""
        arguments = self._arguments(attention_mask)
        head = getattr(self.model, "score", None)
        if head is None:
            logits = cast(nn.Module, self.model)(input_ids=input_ids, **arguments).logits
            return cast(Tensor, logits).squeeze(-1)
        # Decoders look for the last token by comparing ids with the padding token. Where that is the end token, the
        # answer depends on the padding of the batch; by the mask it does not.
        body = cast(nn.Module, self.model.base_model)
        hidden = body(input_ids=input_ids, **arguments).last_hidden_state
        return cast(Tensor, head(pool_last(hidden, self._pooled(input_ids, attention_mask)))).squeeze(-1)

    def _pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Mask of the tokens among which the model takes the last one of a row that stands alone."""
        if self._passed_over is None:
            return attention_mask.bool()
        candidates = attention_mask.bool() & (input_ids != self._passed_over)
        # A row of nothing else is pooled at its first token.
        nothing_else = ~candidates.any(dim=1)
        candidates[:, 0] |= nothing_else
        return candidates


def reward_model_source(path: str | Path, batch_size: int = 64, device: str | None = None) -> RewardSource:
    """The reward source of a model on disk: a RewardModelSource where this library saved it, else a ClassifierSource.

    Args:
        path: folder or file of a reward model, or folder or hub name of a sequence classifier with one label.
        batch_size: responses scored at once.
        device: where to put the model; None takes a GPU where there is one.

    Raises:
        ConfigError, CheckpointError: see the two classes.
    """
    if is_reward_model(path):
        return RewardModelSource(path, batch_size=batch_size, device=device)
    return ClassifierSource(path, batch_size, device)


def _require_one_label(folder: str | Path, model: PreTrainedModel) -> None:
    labels = model.config.num_labels
    if labels != 1:
        size = model.config.get_text_config().hidden_size
        raise ConfigError(
            f"{folder}: found a classifier with num_labels={labels}, a head of shape ({labels}, {size}), expected "
            f"num_labels=1, shape (1, {size}): a scalar reward. Train one with a single label."
        )
