"""Settings of supervised fine-tuning."""

from pydantic import Field, model_validator

from rlcore.configs.base import LoraConfig, Settings, StageConfig


class ScratchModelConfig(Settings):
    """Shape of a small Llama that is built and whose tokenizer is trained from the demonstrations."""

    vocab_size: int = Field(400, ge=270)
    """Upper limit of the tokenizer's vocabulary, in tokens. Bytes and special tokens take 260 of them."""
    hidden_size: int = Field(64, ge=8)
    """Width of the residual stream."""
    num_layers: int = Field(3, ge=1)
    """Transformer layers."""
    num_heads: int = Field(2, ge=1)
    """Attention heads; must divide hidden_size."""
    intermediate_size: int = Field(128, ge=8)
    """Width of the feed-forward layer."""
    max_positions: int = Field(128, ge=16)
    """Longest sequence, in tokens."""
    initializer_range: float = Field(0.05, gt=0)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ScratchModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}")
        return self


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations; the loss counts response tokens only."""

    model_name: str = "scratch"
    """A model folder, a hub name, or "scratch" for a new small Llama with a tokenizer of its own."""
    scratch: ScratchModelConfig = ScratchModelConfig()
    """Shape of the new model; read only with model_name "scratch"."""
    max_steps: int = Field(1000, ge=0)
    """Optimiser steps. 0 publishes the model as it is."""
    batch_size: int = Field(32, ge=1)
    """Rows of one backward pass in each process."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    """Batches whose gradients make one optimiser step."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate of AdamW."""
    min_learning_rate_ratio: float = Field(0.05, ge=0, le=1)
    """The cosine schedule ends at this share of the peak."""
    warmup_steps: int = Field(20, ge=0)
    """Optimiser steps of linear warm-up."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of the gradients."""
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    """Decay of the mean of the squared gradients."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""
    max_length: int = Field(128, ge=8)
    """Longest prompt plus response, in tokens."""
    logging_steps: int = Field(10, ge=1)
    """Optimiser steps between two points of the trace."""
    eval_every: int = Field(250, ge=1)
    """Optimiser steps between two measurements of the validation rows; the last step is measured too."""
    save_steps: int = Field(250, ge=1)
    """Optimiser steps between two checkpoints from which an interrupted run goes on."""
    lora: LoraConfig | None = None
    """Train adapters on a frozen base; null trains all weights."""

    @model_validator(mode="after")
    def _adapters_have_a_base(self) -> "SFTConfig":
        if self.lora is not None and self.model_name == "scratch":
            raise ValueError(
                "lora: found adapters for model_name='scratch', whose frozen weights would stay random. Name a trained "
                "model, or leave lora out"
            )
        return self
