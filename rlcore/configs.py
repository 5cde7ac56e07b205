"""One frozen class per stage: the only place where a setting has a name, a type, a default, bounds and a meaning.

`params.yaml`, the form of the Prefect deployment and the command line flags derive from these classes. Unknown keys
fail. Importing this module loads neither torch nor transformers.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class StageConfig(BaseModel):
    """What every stage has: frozen fields, no unknown keys, one seed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of every random number of the stage."""


class ScratchModelConfig(BaseModel):
    """Shape of a small Llama that is built and whose tokenizer is trained from the demonstrations."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

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


class LoraConfig(BaseModel):
    """Low-rank adapters (Hu et al. 2022). The base stays frozen and serves as the reference model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    rank: int = Field(16, ge=1)
    """Rank of the update of each weight matrix."""
    alpha: float = Field(32, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Module names to adapt, or "all-linear" for every linear layer but the output layer."""


class DemoDataConfig(StageConfig):
    """Generation of the embedded data set."""

    dataset: str = "tasks.demos.arithmetic:generate"
    """The generator, as `module:function`. It gets this config and a folder to fill."""
    source: str | None = None
    """Folder with the files the generator starts from; null where it needs none."""
    model_name: str | None = None
    """Model folder the generator samples from; null where it needs none."""
    demonstrations: int = Field(6000, ge=0)
    """Rows for supervised fine-tuning."""
    preference_pairs: int = Field(8000, ge=1)
    """Preference pairs for training."""
    held_out_pairs: int = Field(600, ge=1)
    """Preference pairs from held-out groups, without label noise."""
    prompts_per_group: int = Field(5, ge=1)
    """Prompts drawn for each held-out group."""
    held_out_share: float = Field(0.2, gt=0, lt=1)
    """Share of the prompt groups that no training stage sees."""
    validation_share: float = Field(0.08, ge=0, lt=1)
    """Share of the prompt groups on which checkpoints are chosen."""
    slip_share: float = Field(0.6, ge=0, le=1)
    """Share of the sums of ten or more whose demonstration drops the ten, as a hurried person would."""


class ValidateConfig(StageConfig):
    """Validation of the raw data. Rows that break a rule go to quarantine with the reason; good rows pass unchanged."""

    source: str = "data/raw/demo"
    """Folder with demonstrations.jsonl, preferences.jsonl and prompts.jsonl."""
    max_dropped_share: float = Field(0.02, ge=0, le=1)
    """Largest share of rows that may be dropped before the stage fails."""
    max_characters: int = Field(20_000, ge=1)
    """Longest prompt or response, in characters."""
    held_out_share: float = Field(0.2, ge=0, lt=1)
    """Share of the prompt groups held out for evaluation, where rows carry no `split`."""
    validation_share: float = Field(0.08, ge=0, lt=1)
    """Share of the prompt groups for choosing checkpoints, where rows carry no `split`."""


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations; the loss counts response tokens only."""

    model_name: str = "scratch"
    """A model folder, a hub name, or "scratch" for a new small Llama with a tokenizer of its own."""
    scratch: ScratchModelConfig = ScratchModelConfig()
    """Shape of the new model; read only with model_name "scratch"."""
    max_steps: int = Field(1000, ge=0)
    """Optimiser steps. 0 publishes the model as it is."""
    batch_size: int = Field(32, ge=1)
    """Rows of one optimiser step and device."""
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
    save_steps: int = Field(250, ge=1)
    """Optimiser steps between two checkpoints from which an interrupted run goes on."""


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
    clip_ratio: float = Field(0.2, gt=0, lt=1)
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

    learning_rate: float = Field(1e-5, gt=0)
    """Learning rate of the policy. Recommended: 5e-6 to 1e-5 for pretrained models."""
    value_learning_rate: float | None = Field(None, gt=0)
    """Learning rate of the value head; null takes learning_rate."""
    ppo_epochs: int = Field(4, ge=1)
    """Passes over the responses of one iteration."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per token. Recommended: 0.9 to 1."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE lambda: 0 trusts the critic, 1 trusts the sampled rewards. Recommended: 0.9 to 0.99."""
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the one at sampling time, in reward units; null does not clip."""
    kl_penalty_coef: float = Field(0.01, ge=0)
    """Initial weight of the KL penalty, in reward units per nat; 0 switches it off. Recommended: 0.01 to 0.5."""
    kl_target: float = Field(0.01, gt=0)
    """KL to the reference that the controller steers for, in nats per kl_target_unit."""
    kl_target_unit: Literal["token", "sequence"] = "token"
    """Whether kl_target is per response token or summed over a response."""
    kl_horizon: float = Field(10_000, gt=0)
    """Responses over which the controller may change its coefficient by a fifth. Large values react slowly."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value_coef: float = Field(0.5, ge=0)
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

    learning_rate: float = Field(1e-6, gt=0)
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

    learning_rate: float = Field(8e-6, gt=0)
    """Peak learning rate of AdamW. Recommended: 5e-6 to 1e-5 for pretrained models."""
    beta: float = Field(0.1, ge=0)
    """Weight of the odds ratio beside the supervised loss of the chosen response; 0 is supervised fine-tuning."""


class EvaluateConfig(StageConfig):
    """Measurement of the policy beside its SFT start and the champion on held-out prompts."""

    gold: str | None = "tasks.demos.arithmetic:gold"
    """Checker of a response, as `module:function`; null where there is none. Never a training signal."""
    text_model: str | None = None
    """Model folder under which the perplexity of the responses is measured; null skips it."""
    samples_per_prompt: int = Field(4, ge=1)
    """Responses sampled for each held-out prompt."""
    max_new_tokens: int = Field(16, ge=1)
    """Longest response, in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    bootstrap_samples: int = Field(1000, ge=100)
    """Resamples of the prompt groups behind each interval."""
    example_prompts: int = Field(10, ge=0)
    """Prompts whose answers before and after are kept to be read."""


class GateConfig(StageConfig):
    """Conditions under which a policy becomes the challenger. A null condition is not checked.

    Where `evaluate.gold` is null nothing measures gold: set min_gain to {win: 0}, the paired comparison by the reward
    model, and max_drop_from_best to null.
    """

    min_gain: dict[str, float] = {"gold": 0.10}
    """Least gain over the champion, or over SFT while there is none; the lower end of the interval must be above 0.
    Keys: what the checker measures, `win` (share of answers that are better less share that are worse), and
    `reward/score_mean`."""
    max_kl_sequence: float | None = Field(2.0, gt=0)
    """Largest KL to the reference, in nats per response."""
    max_drop_from_best: float | None = Field(0.05, ge=0)
    """Largest loss of gold against the best validation measure of the run; needs a checker that measures `gold`."""
    min_length_ratio: float | None = Field(0.8, gt=0)
    """Least mean response length, as a share of SFT's."""
    max_length_ratio: float | None = Field(1.3, gt=0)
    """Largest mean response length, as a share of SFT's."""
    min_eos_fraction: float | None = Field(0.98, ge=0, le=1)
    """Least share of responses that end by themselves."""
    min_distinct_ratio: float | None = Field(None, gt=0)
    """Least distinct-2, as a share of SFT's: falls when responses repeat themselves."""
    max_perplexity_ratio: float | None = Field(None, gt=0)
    """Largest perplexity of the responses under evaluate.text_model, as a share of SFT's."""
    min_reward_model_accuracy: float | None = Field(0.75, ge=0, le=1)
    """Least accuracy of the reward model on held-out pairs."""


class RegisterConfig(StageConfig):
    """Registration of the policy in MLflow."""

    copy_limit: int = Field(1 << 30, ge=0)
    """Checkpoints up to this size, in bytes, are copied into the registry; of larger ones it keeps the DVC md5."""
