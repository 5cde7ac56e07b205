"""Settings of reward models."""

from typing import Literal

from pydantic import Field

from rlcore.configs.base import StageConfig


class RewardModelConfig(StageConfig):
    """Reward model on preference pairs: Bradley-Terry loss (Bradley & Terry 1952; Ouyang et al. 2022)."""

    model_name: str
    """Folder or hub name of the model that becomes the body: a decoder or an encoder."""
    num_labels: int = Field(1, ge=1)
    """Outputs of the head; 1 for a scalar reward."""
    pooling_strategy: Literal["last", "mean", "cls"] = "last"
    """Which hidden state is scored: last real token, mean of the real ones, first real one."""
    dropout_prob: float = Field(0.1, ge=0, lt=1)
    """Dropout in front of the head while training."""
    temperature: float = Field(1.0, gt=0)
    """Rewards are divided by it."""
    use_lora: bool = False
    """Train low-rank adapters and the head only."""
    lora_rank: int = Field(8, ge=1)
    """Rank of the adapters."""
    lora_alpha: float = Field(16, gt=0)
    """Adapter scale: alpha / rank."""
    lora_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout in front of the adapters."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(100, ge=0)
    """Optimiser steps of linear warm-up; cosine to 0 follows."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    """Batches whose gradients make one optimiser step."""
    batch_size: int = Field(8, ge=1)
    """Pairs of one batch."""
    num_epochs: int = Field(3, ge=0)
    """Passes over the pairs."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""
    center_rewards_coef: float = Field(0.0, ge=0)
    """Weight of (chosen + rejected) squared, which keeps rewards near 0 (Eisenstein et al. 2023)."""
    max_length: int = Field(512, ge=2)
    """Longest prompt plus response, in tokens. A prompt loses its beginning, never the response."""
    reference_samples: int = Field(0, ge=0)
    """Responses of the reference model on which rewards are shifted and scaled to mean 0 and deviation 1."""
    reference_max_new_tokens: int = Field(64, ge=1)
    """Length limit of those responses, in tokens."""
    save_steps: int = Field(100, ge=1)
    """Optimiser steps between two checkpoints from which an interrupted run goes on."""
    logging_steps: int = Field(10, ge=1)
    """Optimiser steps between two points of the trace."""
    device: str | None = None
    """Device to train on; null takes a GPU where there is one."""
