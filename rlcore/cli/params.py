"""The documents' second vocabulary: one class whose names and defaults are those of the command line.

Its defaults differ from those of `rlcore.configs` (KL coefficient 0.1 against 0.01, temperature 1 against 0.7). So each
field that a trainer reads is handed to it, set or not; the table is in `rlcore.cli.stages`.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlcore.cli.not_offered import NOT_OFFERED, REFUSED_VALUES
from rlcore.configs import Recommended, Silenced, StageConfig


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{error}; expected a JSON object") from None


Json = BeforeValidator(_from_json)
"""A setting that may also come as a JSON object in text."""


class LLMTrainingParams(StageConfig):
    """Settings of one training, whatever the trainer. A flag of the command line is a field, its underscores dashes.

    A field that the chosen trainer does not read has to keep its default; AutoTrainProject refuses any other value by
    name. What no trainer offers is refused here, with the reason.
    """

    trainer: Literal["default", "generic", "sft", "reward", "ppo", "grpo", "dpo", "orpo"] = "default"
    """Which trainer; default and generic are sft."""
    model: str = "google/gemma-3-270m"
    """Folder or hub name of the model to start from."""
    data_path: str = "data"
    """A .jsonl, .json, .csv or .parquet file, each also with .gz behind; a folder with such files named after their
    split; or the hub name of a data set."""
    project_name: str = "project-name"
    """Folder of the result. It is written there and nowhere else."""
    train_split: str = "train"
    """File name, without its ending, of the rows to train on in the folder data_path, or their split on the hub."""
    valid_split: str | None = None
    """The same for the rows on which the best checkpoint is chosen; null takes `valid` where the folder has it. Without
    such rows the last checkpoint is kept."""
    max_samples: int | None = Field(None, ge=1)
    """Read the first rows only, at most that many of each split; null reads all."""
    seed: int = Field(42, ge=0, lt=2**32)
    """Seed of every random number."""
    implementation: Literal["own", "trl"] | None = None
    """Whose trainer: this library's or TRL's; null takes TRL's where there is one."""
    silence: Silenced = ()
    """Good practices that are not checked: their names, with commas between them."""

    text_column: str = "text"
    """Column of the prompts (ppo, grpo), the responses (sft) or the preferred responses (reward, dpo, orpo). Where
    there is no column `text`, the default stands for `prompt`, `response` or `chosen`, or for `messages`."""
    prompt_text_column: str | None = None
    """Column of the prompts; null is `prompt`."""
    rejected_text_column: str | None = None
    """Column of the rejected responses; null is `rejected`."""
    column_mapping: Annotated[dict[str, str] | None, Json] = None
    """Further columns to rename, as a JSON object from the name that is read to the one in the file, such as
    {"answer": "solution"}."""
    block_size: int = Field(1024, ge=8)
    """Longest prompt plus response, in tokens."""
    max_prompt_length: int = Field(128, ge=1)
    """Tokens that the prompt of a longer pair keeps at the response's expense."""

    lr: float = Field(3e-5, gt=0)
    """Learning rate of AdamW."""
    epochs: int = Field(1, ge=0)
    """Passes over the data. 0 trains nothing. ppo and grpo round up to whole iterations."""
    batch_size: int = Field(2, ge=1)
    """Rows of one backward pass."""
    gradient_accumulation: int = Field(4, ge=1)
    """Batches whose gradients make one optimiser step; ppo has rl_mini_batch_size instead."""
    warmup_ratio: float = Field(0.1, ge=0, le=1)
    """Share of the optimiser steps that is linear warm-up, rounded up; ppo and grpo train at a constant rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this L2 norm."""
    eval_strategy: Literal["epoch", "no"] = "epoch"
    """When the rows of valid_split are measured: after each epoch, or never."""
    logging_steps: int = Field(10, ge=1)
    """Optimiser steps between two reports; ppo and grpo report every iteration."""
    log: Literal["none", "mlflow"] = "none"
    """Where metrics are kept. Progress is shown in any case."""

    save_strategy: Literal["epoch", "steps", "no"] = "epoch"
    """When a checkpoint is written from which an interrupted run goes on: after each epoch, every save_steps, never."""
    save_steps: int = Field(500, ge=1)
    """Optimiser steps, for ppo and grpo iterations, between two checkpoints."""
    resume_from_checkpoint: str | None = None
    """Go on from the newest checkpoint in this folder, and leave it there; auto, true and latest are
    <project_name>-checkpoints. null keeps checkpoints there too, but only until the run is done."""

    peft: bool = False
    """Train low-rank adapters on frozen weights."""
    lora_r: int = Field(16, ge=1)
    """Rank of the adapters."""
    lora_alpha: float = Field(32, gt=0)
    """Adapter scale: alpha / rank."""
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    """Dropout in front of the adapters; policies are trained without."""
    target_modules: str = "all-linear"
    """Names of the modules to adapt, with commas between them, or all-linear."""
    merge_adapter: bool = True
    """Add the adapters to the weights at the end; false writes a folder with the adapters alone."""

    model_ref: str | None = None
    """Folder or hub name of the KL reference; null takes the model itself, frozen."""
    dpo_beta: float = Field(0.1, gt=0)
    """Strength of the pull to the reference, in reward units per nat (dpo), or weight of the odds ratio (orpo)."""

    rl_reward_model_path: str | None = None
    """Folder of a reward model. ppo needs it or model_ref."""
    rl_reward_fn: str | None = None
    """Reward function: default (length), length_penalty, correctness, or one of your own as module:function. null is
    the reward model where there is one, else default."""
    rl_multi_objective: bool = False
    """Add up several rewards; rl_reward_weights or rl_env_config says which."""
    rl_reward_weights: Annotated[dict[str, float] | None, Json] = None
    """Weights by name, as a JSON object: of reward functions that have a name, of `reward_model`, or of the components
    of rl_env_config."""
    rl_env_type: Literal["text_generation", "multi_objective", "preference_comparison"] | None = None
    """Environment that scores the responses: the reward of the text up to a stop sequence; several rewards, the same as
    rl_multi_objective; or two responses to each prompt, of which the reward prefers one."""
    rl_env_config: Annotated[dict[str, Any] | None, Json] = None
    """Settings of the environment, as a JSON object: `stop_sequences`, and for multi_objective `reward_components`;
    with rl_env_class its keyword arguments."""
    rl_env_module: str | None = None
    """Module of the environment of your own that brings the prompts and scores the answers."""
    rl_env_class: str | None = None
    """Class in rl_env_module."""
    rl_max_turns: int = Field(1, ge=1)
    """Turns of an episode in rl_env_class: the policy may call a tool in all but the last."""

    rl_kl_coef: Annotated[float, Recommended(0.01, 0.5)] = Field(0.1, ge=0)
    """Weight of the KL penalty, in reward units per nat; ppo adapts it as it trains. Recommended: 0.01 to 0.5."""
    rl_clip_range: Annotated[float, Recommended(0.1, 0.3)] = Field(0.2, gt=0, lt=1)
    """Half-width of the trust region of the probability ratio. Recommended: 0.1 to 0.3."""
    rl_gamma: Annotated[float, Recommended(0.9, 0.99)] = Field(0.99, ge=0, le=1)
    """Discount per token. Recommended: 0.9 to 0.99."""
    rl_gae_lambda: Annotated[float, Recommended(0.9, 0.99)] = Field(0.95, ge=0, le=1)
    """GAE lambda: 0 trusts the critic, 1 trusts the sampled rewards. Recommended: 0.9 to 0.99."""
    rl_value_loss_coef: Annotated[float, Recommended(0.5, 2.0)] = Field(1.0, ge=0)
    """Weight of the value loss. Recommended: 0.5 to 2."""
    rl_value_clip_range: float | None = Field(0.2, gt=0)
    """How far a value may move from the one at sampling time, in reward units; null does not clip."""
    rl_num_ppo_epochs: int = Field(4, ge=1)
    """Passes over the responses of one iteration."""
    rl_chunk_size: int = Field(128, ge=1)
    """Responses sampled in one iteration. Where there are fewer prompts, each is answered several times."""
    rl_mini_batch_size: int = Field(8, ge=1)
    """Responses of one optimiser step."""
    rl_optimize_device_cache: bool = True
    """A mini-batch for which the device has too little memory is halved, which changes no gradient; always done."""
    rl_num_generations: int = Field(4, ge=2)
    """Responses sampled for each prompt; divides batch_size * gradient_accumulation."""
    rl_loss_type: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    """What weighs the same: each response (grpo), each token (dapo), each token at full length (dr_grpo)."""
    rl_mask_truncated_completions: bool = False
    """Learn nothing from responses that were cut by the length limit."""

    rl_max_new_tokens: int = Field(128, ge=1)
    """Longest response, in tokens."""
    rl_top_k: int = Field(50, ge=0)
    """Sample among the k most likely tokens; 0 is off, and samples from the distribution that is trained."""
    rl_top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens that reaches this probability; 1 is off."""
    rl_temperature: float = Field(1.0, gt=0)
    """Sampling temperature; log-probabilities of policy, old policy and reference all use it."""

    push_to_hub: bool = False
    """Upload the result to the hub."""
    repo_id: str | None = None
    """Name of the repository, `owner/name`; null is username and the last part of project_name."""
    username: str | None = None
    """Owner of the repository where repo_id is null."""
    hub_private: bool = True
    """Make a new repository private."""
    token: str | None = Field(None, repr=False)
    """Access token of the hub; null takes HF_TOKEN or the one that `hf auth login` keeps, which no list of processes
    shows."""

    @property
    def stage(self) -> str:
        """The trainer, as `rlcore.backends` names it."""
        return "sft" if self.trainer in ("default", "generic") else self.trainer

    @field_validator("*")
    @classmethod
    def _refuse_what_has_no_32_bits(cls, value: Any) -> Any:
        if type(value) is int and value >= 2**32:
            raise ValueError(f"expected less than {2**32}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for name, value in values.items():
            if name in NOT_OFFERED and not NOT_OFFERED[name].lets_through(value):
                raise ValueError(f"{name}={value!r} is not offered: {NOT_OFFERED[name].reason}. Leave it out")
            reason = REFUSED_VALUES.get(name, {}).get(str(value).lower())
            if reason is not None:
                raise ValueError(f"{name}={value!r} is not offered: {reason}")
        return {name: value for name, value in values.items() if name not in NOT_OFFERED}
