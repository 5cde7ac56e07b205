"""Settings of the trainers that make a policy of preference pairs: DPO and ORPO."""

from typing import Annotated

from pydantic import Field, model_validator

from rlcore.configs.base import LoraConfig, StageConfig
from rlcore.configs.recommended import Recommended


class PreferenceConfig(StageConfig):
    """What every trainer shares that makes a policy of preference pairs, without a reward model.

    Batch sizes count the pairs of all processes together.
    """

    model_name: str
    """Folder or hub name of the policy to start from."""
    min_learning_rate_ratio: float = Field(0.0, ge=0, le=1)
    """The cosine schedule ends at this share of the peak."""
    warmup_ratio: float = Field(0.1, ge=0, le=1)
    """Share of the optimiser steps that is linear warm-up, rounded up."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    batch_size: int = Field(8, ge=1)
    """Pairs of one backward pass."""
    gradient_accumulation_steps: int = Field(2, ge=1)
    """Batches whose gradients make one optimiser step; the last step of an epoch may have fewer."""
    num_epochs: int = Field(1, ge=0)
    """Passes over the pairs. 0 trains nothing."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""
    max_length: int = Field(512, ge=2)
    """Longest prompt plus response, in tokens."""
    max_prompt_length: int = Field(256, ge=1)
    """Tokens that the prompt of a longer pair keeps at the response's expense; it loses its beginning."""
    logging_steps: int = Field(10, ge=1)
    """Optimiser steps between two points of the trace."""
    eval_every: int = Field(100, ge=1)
    """Optimiser steps between two evaluations on the validation pairs; the last step is evaluated too."""
    eval_prompts: int = Field(64, ge=0)
    """Validation prompts that are answered at each evaluation, to be read, at most; 0 answers none."""
    save_every: int = Field(500, ge=1)
    """Optimiser steps between two checkpoints from which an interrupted run goes on."""
    lora: LoraConfig | None = None
    """Train adapters on a frozen base; null trains all weights."""
    device: str | None = None
    """Device to train on; null takes a GPU where there is one."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> "PreferenceConfig":
        if self.max_prompt_length >= self.max_length:
            raise ValueError(
                f"max_prompt_length={self.max_prompt_length} leaves no token for the response in "
                f"max_length={self.max_length}"
            )
        return self


class DPOConfig(PreferenceConfig):
    """Direct preference optimisation (Rafailov et al. 2023): the loss pulls away from a frozen reference.

    The reference is a copy of the policy, with adapters the base below them.
    """

    learning_rate: Annotated[float, Recommended(1e-6, 1e-5)] = Field(1e-6, gt=0)
    """Peak learning rate of AdamW. Recommended: 1e-6 to 1e-5 for pretrained models."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull to the reference, in reward units per nat."""
    label_smoothing: float = Field(0.0, ge=0, le=0.5)
    """Share of pairs believed to be labelled the wrong way round (Mitchell 2023). 0.1 for noisy labels."""
    reference_free: bool = False
    """Take a reference that likes all responses alike; none is loaded."""
    max_non_finite_steps: int = Field(3, ge=1)
    """Skipped optimiser steps in a row after which training stops."""


class ORPOConfig(PreferenceConfig):
    """Odds-ratio preference optimisation (Hong et al. 2024): neither a reward model nor a reference."""

    learning_rate: Annotated[float, Recommended(5e-6, 1e-5)] = Field(8e-6, gt=0)
    """Peak learning rate of AdamW. Recommended: 5e-6 to 1e-5 for pretrained models."""
    beta: float = Field(0.1, ge=0)
    """Weight of the odds ratio beside the supervised loss of the chosen response; 0 is supervised fine-tuning."""
