"""The reward model: a decoder or encoder, a pooled hidden state, one linear layer."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import peft
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.checkpoint import read_tensors
from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward.token_checks import check_ids, token_ids
from rlcore.functional.losses import bradley_terry_loss
from rlcore.functional.masking import POOLINGS, require_same_shape
from rlcore.models import evaluation_mode, require_arguments, seeded, vocabulary_size
from rlcore.reward.body import ForwardArguments, add_adapters, load_body, prepare_body
from rlcore.reward.texts import Text, encode_texts, score_rows

REWARD_CONFIG, HEAD = "reward_config.json", "reward_head.safetensors"


class RewardModel(nn.Module):
    """Rewards of token rows: (head(dropout(pooled)) / temperature - reward_shift) / reward_scale.

    Padding may be on either side; a row's rewards do not depend on it. Weights are float32, drawn from `config.seed`.

    Args:
        config: pooling, head, adapters. A `model_name` that `save_reward_model` wrote brings its head along.
        base_model: body to take instead of loading `config.model_name`; of a causal language model, its decoder. Its
            weights are shared, not copied.

    Attributes:
        body: the decoder or encoder, with adapters if `config.use_lora`.
        head: Linear without bias, hidden size to `config.num_labels`.
        max_length: tokens that a row may have: `config.max_length`, or fewer where the body knows fewer positions.
        reward_shift, reward_scale: buffers, scalars; 0 and 1 until rewards are normalised.

    Raises:
        ConfigError: the config is of another class, the body cannot be found, is no decoder or encoder, or takes no
            adapters, or the saved head has other outputs.
        CheckpointError: weights of the body are damaged or missing.
    """

    reward_shift: Tensor
    reward_scale: Tensor

    def __init__(self, config: RewardModelConfig, base_model: PreTrainedModel | None = None):
        super().__init__()
        require_arguments(config, RewardModelConfig)
        self.config = config
        body = load_body(config.model_name) if base_model is None else base_model.base_model
        self.body = prepare_body(cast(PreTrainedModel, body))
        self._arguments = ForwardArguments(self.body)
        self.max_length = min(config.max_length, self._arguments.max_length or config.max_length)
        with seeded(config.seed):
            if config.use_lora:
                self.body = cast(PreTrainedModel, add_adapters(self.body, config))
            self.head = nn.Linear(_hidden_size(self), config.num_labels, bias=False)
            nn.init.normal_(self.head.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout_prob)
        self.register_buffer("reward_shift", torch.zeros(()))
        self.register_buffer("reward_scale", torch.ones(()))
        if base_model is None and (Path(config.model_name) / REWARD_CONFIG).is_file():
            self.load_head(read_head(Path(config.model_name))["weight"])

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_dict: bool = True
    ) -> dict[str, Tensor] | Tensor:
        """Rewards of B rows.

        Args:
            input_ids: int64 [B, L].
            attention_mask: 0/1 [B, L], 1 on real tokens; None where no token is padding.
            return_dict: False returns the rewards alone.

        Returns:
            `rewards` [B, num_labels], float32; `pooled_output` [B, H]; `last_hidden_state` [B, L, H].

        Raises:
            DataError: the shapes do not fit, a row has no real token, or an id is beyond the body's vocabulary.
        """
        outputs, hidden_states = self.head_outputs(input_ids, attention_mask)
        rewards = self.normalized(outputs)
        return {"rewards": rewards, **hidden_states} if return_dict else rewards

    def head_outputs(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """What the head says, over temperature but not normalised, [B, num_labels]; and the two hidden states.

        Arguments and errors are those of forward.
        """
        input_ids = token_ids("input_ids", input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        require_same_shape(input_ids=input_ids, attention_mask=mask)
        if input_ids.ndim != 2:
            raise DataError(f"Found input_ids of shape {list(input_ids.shape)}, expected [rows, tokens].")
        check_ids("input_ids", input_ids, vocabulary_size(self.body))
        hidden = self.hidden(input_ids, mask)
        pooled = POOLINGS[self.config.pooling_strategy](hidden, mask)
        outputs = self.head(self.dropout(pooled).to(self.head.weight.dtype)) / self.config.temperature
        return outputs, {"pooled_output": pooled, "last_hidden_state": hidden}

    def normalized(self, outputs: Tensor) -> Tensor:
        """Outputs of the head in units of the reference model, once the rewards are normalised."""
        return (outputs - self.reward_shift) / self.reward_scale

    def scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scalar rewards [B] of rows [B, L].

        Raises:
            ConfigError: the model gives more than one reward.
            DataError: see forward.
        """
        self.require_scalar()
        return cast(Tensor, self(input_ids, attention_mask, return_dict=False)).squeeze(-1)

    def require_scalar(self) -> None:
        """Let a model pass that gives one reward for each row.

        Raises:
            ConfigError: it gives more. Names both shapes.
        """
        if self.config.num_labels != 1:
            shape = tuple(self.head.weight.shape)
            raise ConfigError(
                f"The reward head has shape {shape}, expected (1, {shape[1]}): a scalar reward needs num_labels=1."
            )

    def pair_scores(
        self, first_ids: Tensor, first_mask: Tensor, second_ids: Tensor, second_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scalar rewards of the two sides of N pairs, [N] each, from one forward pass.

        Args:
            first_ids, first_mask: [N, L].
            second_ids, second_mask: [N, M].

        Raises:
            ConfigError: the model gives more than one reward.
            DataError: the numbers of rows differ or are 0, the shapes do not fit, or a row has no real token.
        """
        pairs = len(first_ids)
        if pairs == 0 or len(second_ids) != pairs:
            raise DataError(
                f"Found {pairs} rows on one side of the pairs and {len(second_ids)} on the other, "
                "expected equally many, at least one."
            )
        require_same_shape(input_ids=first_ids, attention_mask=first_mask)
        require_same_shape(input_ids=second_ids, attention_mask=second_mask)
        width = max(first_ids.shape[1], second_ids.shape[1])
        # Any id does for the padding: the mask keeps it out of the rewards.
        input_ids = torch.cat([F.pad(ids, (0, width - ids.shape[1])) for ids in (first_ids, second_ids)])
        masks = torch.cat([F.pad(mask, (0, width - mask.shape[1])) for mask in (first_mask, second_mask)])
        rewards = self.scores(input_ids, masks)
        return rewards[:pairs], rewards[pairs:]

    def compute_preference_loss(
        self,
        chosen_ids: Tensor,
        chosen_mask: Tensor,
        rejected_ids: Tensor,
        rejected_mask: Tensor,
        margin: Tensor | float = 0.0,
    ) -> Tensor:
        """Mean of -log sigmoid(chosen - rejected - margin) over N pairs, a scalar, from one forward pass.

        Args:
            chosen_ids, chosen_mask: [N, L] of the preferred responses.
            rejected_ids, rejected_mask: [N, M] of the others.
            margin: float or [N], reward units.

        Raises:
            ConfigError, DataError: see pair_scores; a margin is not finite.
        """
        if not bool(torch.as_tensor(margin).isfinite().all()):
            raise DataError(
                "Found a margin that is not finite, expected a number for each pair. Drop or mend that pair."
            )
        chosen, rejected = self.pair_scores(chosen_ids, chosen_mask, rejected_ids, rejected_mask)
        return bradley_terry_loss(chosen, rejected, margin)

    def predict_rewards(
        self,
        texts: Sequence[Text],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        batch_size: int = 8,
    ) -> list[float]:
        """One score for each text, in the order given; no text gives no score. The model's mode stays as it is.

        Args:
            texts: whole texts, or (prompt, response); see `rlcore.reward.texts.encode_texts`.
            tokenizer: of the model.
            max_length: tokens that are read of a text; None, or more than the model's own `max_length`, takes that.
            batch_size: texts scored at once, which changes no score beyond rounding.

        Raises:
            ConfigError: the model gives more than one reward, the tokenizer has no end or padding token, or a number is
                out of range.
            DataError: a row is no text.
        """
        rows, pad_id = self.encoded(texts, tokenizer, max_length)
        return score_rows(self, self.scores, rows, pad_id=pad_id, batch_size=batch_size)

    def encoded(
        self, texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
    ) -> tuple[list[list[int]], int]:
        """Tokens of the texts, and the id that fills a batch of them; arguments and errors as in predict_rewards."""
        chat = ChatFormat(tokenizer)
        limit = self.max_length if max_length is None else min(max_length, self.max_length)
        return encode_texts(chat, texts, limit), chat.pad_id

    def load_head(self, weight: Tensor) -> None:
        """Take a saved head.

        Raises:
            ConfigError: its shape is another. Names both.
        """
        if weight.shape != self.head.weight.shape:
            raise ConfigError(
                f"Found a reward head of shape {tuple(weight.shape)}, expected {tuple(self.head.weight.shape)}, "
                f"which is (num_labels, hidden size). Set num_labels to {weight.shape[0]}, or start from another model."
            )
        with torch.no_grad():
            self.head.weight.copy_(weight)

    def merged(self) -> "RewardModel":
        """The model itself where it has no adapters, else a copy with the adapters added to the weights."""
        if not self.config.use_lora:
            return self
        twin = copy.deepcopy(self)
        twin.body = cast(peft.PeftModel, twin.body).merge_and_unload()
        twin.config = self.config.model_copy(update={"use_lora": False})
        return twin

    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The body's last hidden states [B, L, H] of ids and 0/1 mask [B, L], whatever side the padding is on."""
        body = cast(nn.Module, self.body)
        return cast(Tensor, body(input_ids=input_ids, **self._arguments(attention_mask)).last_hidden_state)


def read_head(folder: Path) -> dict[str, Tensor]:
    """`weight` [num_labels, hidden size] and the buffers of a reward model's folder.

    Raises:
        CheckpointError: the file is missing or damaged, or lacks the weight or the normalisation.
    """
    path = folder / HEAD
    tensors = read_tensors(path)
    missing = sorted({"weight", "reward_shift", "reward_scale"} - set(tensors))
    if missing:
        raise CheckpointError(
            f"{path}: found no {', '.join(missing)}, expected the head of a reward model. "
            "A random one would score at random: train or restore the reward model."
        )
    return tensors


def _hidden_size(model: RewardModel) -> int:
    """Width of the last hidden state, which in some bodies is neither that of the layers nor of the embedding."""
    ids = torch.zeros((1, 1), dtype=torch.int64, device=model.body.device)
    with torch.no_grad(), evaluation_mode(model.body):
        return model.hidden(ids, torch.ones_like(ids)).shape[-1]
