"""The reward model: a decoder or encoder, a pooled hidden state, one linear layer."""

import copy
import inspect
import logging
from pathlib import Path
from typing import cast

import peft
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

from rlcore.checkpoint import read_tensors
from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.functional.losses import bradley_terry_loss
from rlcore.functional.masking import POOLINGS, position_ids_from
from rlcore.models import context_length, evaluation_mode, seeded

REWARD_CONFIG, HEAD = "reward_config.json", "reward_head.safetensors"

logger = logging.getLogger(__name__)


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
        ConfigError: the body cannot be found or is no decoder or encoder, or the saved head has other outputs.
        CheckpointError: weights of the body are damaged or missing.
    """

    reward_shift: Tensor
    reward_scale: Tensor

    def __init__(self, config: RewardModelConfig, base_model: PreTrainedModel | None = None):
        super().__init__()
        self.config = config
        body = load_body(config.model_name) if base_model is None else base_model.base_model
        self.body = _prepare_body(cast(PreTrainedModel, body))
        self._arguments = frozenset(inspect.signature(self.body.forward).parameters)
        self._first_position = _first_position(self.body)
        positions = context_length(self.body) or config.max_length
        self.max_length = min(config.max_length, positions - self._first_position)
        with seeded(config.seed):
            if config.use_lora:
                self.body = _add_adapters(self.body, config)
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
            DataError: a row has no real token.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self._hidden(input_ids, mask)
        pooled = POOLINGS[self.config.pooling_strategy](hidden, mask)
        logits = self.head(self.dropout(pooled).to(self.head.weight.dtype)) / self.config.temperature
        rewards: Tensor = (logits - self.reward_shift) / self.reward_scale
        if not return_dict:
            return rewards
        return {"rewards": rewards, "pooled_output": pooled, "last_hidden_state": hidden}

    def scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scalar rewards [B] of rows [B, L].

        Raises:
            ConfigError: the head has more than one output.
            DataError: a row has no real token.
        """
        if self.config.num_labels != 1:
            shape = tuple(self.head.weight.shape)
            raise ConfigError(
                f"The reward head has shape {shape}, expected (1, {shape[1]}): a scalar reward needs num_labels=1."
            )
        return cast(Tensor, self(input_ids, attention_mask, return_dict=False)).squeeze(-1)

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
            ConfigError: the head has more than one output.
            DataError: the numbers of rows differ or are 0, or a row has no real token.
        """
        pairs = len(chosen_ids)
        if pairs == 0 or len(rejected_ids) != pairs:
            raise DataError(
                f"Found {pairs} chosen and {len(rejected_ids)} rejected rows, expected equally many, at least one."
            )
        width = max(chosen_ids.shape[1], rejected_ids.shape[1])
        # Any id does for the padding: the mask keeps it out of the rewards.
        input_ids = torch.cat([F.pad(ids, (0, width - ids.shape[1])) for ids in (chosen_ids, rejected_ids)])
        masks = torch.cat([F.pad(mask, (0, width - mask.shape[1])) for mask in (chosen_mask, rejected_mask)])
        rewards = self.scores(input_ids, masks)
        return bradley_terry_loss(rewards[:pairs], rewards[pairs:], margin)

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

    def _hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        arguments: dict[str, object] = {"use_cache": False} if "use_cache" in self._arguments else {}
        if "position_ids" in self._arguments:
            arguments["position_ids"] = position_ids_from(attention_mask) + self._first_position
        body = cast(nn.Module, self.body)
        return cast(Tensor, body(input_ids=input_ids, attention_mask=attention_mask, **arguments).last_hidden_state)


def load_body(name: str | Path) -> PreTrainedModel:
    """The decoder or encoder of a model folder or hub name, float32, without the layers on top of it.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no model that transformers knows.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """
    try:
        body, report = AutoModel.from_pretrained(
            name, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    except SafetensorError as error:
        raise CheckpointError(f"The weights in {name} are damaged: {error}. Restore or train them again.") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model_name={str(name)!r}: {reason} Expected a model folder or a hub name.") from error
    mismatched = {key[0] for key in report["mismatched_keys"]}
    lost = sorted(key for key in {*report["missing_keys"], *mismatched} if not key.startswith("pooler."))
    if lost:
        raise CheckpointError(
            f"{name}: {len(lost)} weights are missing or of another shape, such as {lost[0]}; they would be random. "
            "Restore the folder, or name another one."
        )
    return cast(PreTrainedModel, body)


def read_head(folder: Path) -> dict[str, Tensor]:
    """`weight` [num_labels, hidden size], `reward_shift` and `reward_scale` of a reward model's folder.

    Raises:
        CheckpointError: the file is missing or damaged, or lacks one of them.
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


def _prepare_body(body: PreTrainedModel) -> PreTrainedModel:
    if body.config.is_encoder_decoder:
        raise ConfigError(f"{type(body).__name__}: found an encoder-decoder, expected a decoder or an encoder.")
    if getattr(body, "pooler", None) is not None:
        # The head has its own pooling; an idle layer would be saved and never trained.
        body.register_module("pooler", None)
    embedding = body.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        # Masks handle the padding. Where the end token doubles as padding, its embedding has to learn.
        embedding.padding_idx = None
    return body


def _first_position(body: PreTrainedModel) -> int:
    """Position of the first token: some encoders count from behind their padding position."""
    for module in body.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.padding_idx + 1
    return 0


def _hidden_size(model: RewardModel) -> int:
    """Width of the last hidden state, which in some bodies is neither that of the layers nor of the embedding."""
    ids = torch.zeros((1, 1), dtype=torch.int64, device=model.body.device)
    with torch.no_grad(), evaluation_mode(model.body):
        return model._hidden(ids, torch.ones_like(ids)).shape[-1]


def _add_adapters(body: PreTrainedModel, config: RewardModelConfig) -> PreTrainedModel:
    settings = peft.LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=config.lora_rank,
        lora_alpha=cast(int, config.lora_alpha),
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
    )
    return cast(PreTrainedModel, peft.get_peft_model(body, settings))
