"""Settings of the trainers that learn from responses they sample themselves: PPO and GRPO."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlcore.configs.base import LoraConfig, StageConfig
from rlcore.configs.recommended import Recommended


class RolloutConfig(StageConfig):
    """What every trainer shares that learns from responses it samples itself.

    Batch sizes count the responses of all processes together.
    """

    model_name: str
    """Folder or hub name of the policy to start from; its frozen copy is the reference."""
    adam_eps: float = Field(1e-8, gt=0)
    """Epsilon of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of the policy."""
    batch_size: int = Field(16, ge=1)
    """Responses sampled in one iteration."""
    mini_batch_size: int = Field(4, ge=1)
    """Responses of one backward pass. Where the device runs out of memory it is halved, which changes no gradient."""
    gradient_accumulation_steps: int = Field(1, ge=1)
    """Mini-batches whose gradients make one optimiser step."""
    clip_ratio: Annotated[float, Recommended(0.1, 0.3)] = Field(0.2, gt=0, lt=1)
    """Half-width of the trust region of the probability ratio. Recommended: 0.1 to 0.3."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""
    max_update_kl: float | None = Field(None, gt=0)
    """End an update once the policy moved this far from the sampling one, in nats per token; null: never."""
    missing_eos_score: float | None = None
    """Score of a response that was cut by the length limit; null keeps what the reward source said."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longer prompts lose their beginning, in tokens; null leaves the model's context less max_new_tokens."""
    max_new_tokens: int = Field(128, ge=1)
    """Longest response, in tokens; with tools, all that the policy samples in an episode."""
    top_k: int = Field(0, ge=0)
    """Sample among the k most likely tokens; 0 is off."""
    num_iterations: int = Field(100, ge=0)
    """Rounds of sampling and updating. 0 trains nothing."""
    save_every: int = Field(10, ge=1)
    """Iterations between two checkpoints from which an interrupted run goes on."""
    eval_every: int = Field(5, ge=1)
    """Iterations between two evaluations on the validation prompts."""
    eval_prompts: int = Field(128, ge=1)
    """Validation prompts of one evaluation, at most."""
    max_non_finite_steps: int = Field(3, ge=1)
    """Skipped optimiser steps in a row after which training stops."""
    lora: LoraConfig | None = None
    """Train adapters on a frozen base; null trains all weights."""
    device: str | None = None
    """Device to train on; null takes a GPU where there is one."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> "RolloutConfig":
        if self.mini_batch_size > self.batch_size:
            raise ValueError(f"mini_batch_size={self.mini_batch_size} is larger than batch_size={self.batch_size}")
        return self


class PPOConfig(RolloutConfig):
    """Proximal policy optimisation (Schulman et al. 2017) with an adaptive KL penalty (Ziegler et al. 2019)."""

    learning_rate: Annotated[float, Recommended(5e-6, 1e-5)] = Field(1e-5, gt=0)
    """Learning rate of the policy. Recommended: 5e-6 to 1e-5 for pretrained models."""
    value_learning_rate: float | None = Field(None, gt=0)
    """Learning rate of the value head; null takes learning_rate."""
    ppo_epochs: int = Field(4, ge=1)
    """Passes over the responses of one iteration."""
    gamma: Annotated[float, Recommended(0.9, 1)] = Field(0.99, ge=0, le=1)
    """Discount per token. Recommended: 0.9 to 1."""
    lam: Annotated[float, Recommended(0.9, 0.99)] = Field(0.95, ge=0, le=1)
    """GAE lambda: 0 trusts the critic, 1 trusts the sampled rewards. Recommended: 0.9 to 0.99."""
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the one at sampling time, in reward units; null does not clip."""
    kl_penalty_coef: Annotated[float, Recommended(0.01, 0.5)] = Field(0.01, ge=0)
    """Initial weight of the KL penalty, in reward units per nat; 0 switches it off. Recommended: 0.01 to 0.5."""
    kl_target: float = Field(0.01, gt=0)
    """KL to the reference that the controller steers for, in nats per kl_target_unit."""
    kl_target_unit: Literal["token", "sequence"] = "token"
    """Whether kl_target is per response token or summed over a response."""
    kl_horizon: float = Field(10_000, gt=0)
    """Responses over which the controller may change its coefficient by a fifth. Large values react slowly."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value_coef: Annotated[float, Recommended(0.1, 2)] = Field(0.5, ge=0)
    """Weight of the value loss. Recommended: 0.1 to 2."""
    value_warmup_iterations: int = Field(0, ge=0)
    """First iterations that train the value head alone, the trunk detached."""
    temperature: float = Field(0.7, gt=0)
    """Sampling temperature; log-probabilities of policy, old policy and reference all use it."""
    top_p: float = Field(0.9, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens that reaches this probability; 1 is off."""


class GRPOConfig(RolloutConfig):
    """Policy optimisation without a critic: the other responses to the same prompt are the baseline."""

    learning_rate: float = Field(1e-6, gt=0)
    """Learning rate of the policy."""
    num_generations: int = Field(4, ge=2)
    """Responses sampled for each prompt; divides batch_size."""
    grpo_epochs: int = Field(1, ge=1)
    """Passes over the responses of one iteration."""
    advantage_estimator: Literal["group_relative", "leave_one_out"] = "group_relative"
    """group_relative: score less the group's mean, KL in the loss (GRPO, Shao et al. 2024). leave_one_out: score less
    the mean of the others, KL in the score (RLOO, Ahmadian et al. 2024)."""
    advantage_scaling: Literal["group", "batch", "none"] = "group"
    """What group_relative advantages are divided by: the deviation of their group or of the batch, or 1."""
    loss_normalization: Literal["token", "sequence", "constant"] = "token"
    """What weighs the same: each token, each response, or each token at the length max_new_tokens (Liu et al. 2025)."""
    kl_penalty_coef: float = Field(0.04, ge=0)
    """Weight of the KL to the reference, in reward units per nat; 0 switches it off."""
    mask_truncated: bool = False
    """Learn nothing from responses that were cut by the length limit, in numerator and denominator."""
    max_turns: int = Field(1, ge=1)
    """Turns of an episode with tools: the policy may call a tool in all but the last."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; log-probabilities of policy, old policy and reference all use it."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens that reaches this probability; 1 is off."""

    @model_validator(mode="after")
    def _groups_fit(self) -> "GRPOConfig":
        if self.batch_size % self.num_generations:
            valid = [count for count in range(2, self.batch_size + 1) if self.batch_size % count == 0]
            raise ValueError(
                f"num_generations={self.num_generations} does not divide batch_size={self.batch_size}; "
                f"use one of {valid}"
            )
        return self
