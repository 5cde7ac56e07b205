"""The PPO loop: sample, judge, update, evaluate, save; and go on from a checkpoint as if nothing had happened."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    pack_optimizer,
    publish,
    save_checkpoint,
    unpack_optimizer,
)
from rlcore.configs import PPOConfig
from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, require_single_process
from rlcore.functional.losses import explained_variance
from rlcore.health import NonFiniteGuard
from rlcore.kl_control import AdaptiveKLController
from rlcore.models import (
    CausalLM,
    PPOModel,
    add_lora,
    choose_device,
    context_length,
    frozen_copy,
    frozen_weights,
    load_causal_lm,
    load_tokenizer,
    require_same_vocabulary,
    save_causal_lm,
    seeded,
)
from rlcore.ppo.update import experience_of, update_policy
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.rollout import (
    EncodedPrompt,
    Rollout,
    choose_prompts,
    collect,
    encode_prompts,
    rollout_metrics,
    sample_rows,
)
from rlcore.run_folder import checkpoint_folder, require_same_run, rows_sha256, weights_sha256
from rlcore.sampling import SamplingParams
from rlcore.streams import stream_seed

HISTORY = {
    "policy_loss": "policy/loss",
    "value_loss": "value/loss",
    "kl_divergence": "kl/ref_token_mean",
    "entropy": "policy/entropy_mean",
    "rewards": "reward/score_mean",
    "kl_coef": "kl/coef",
}
"""What `train` returns, and the metric behind each list."""

# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "num_iterations", "save_every"}


class PPOTrainer:
    """Train a policy against a reward source.

    Dropout stays off throughout, so that the probability ratio is exactly 1 before the first update of an iteration.

    Args:
        config: settings.
        tokenizer: loaded from config.model_name when None.
        reward_fn: the reward source.
        model: causal language model to train; loaded from config.model_name when None.
        reference_model: frozen model of the KL penalty; a copy of the model when None, and with LoRA the bare base.
        on_metrics: gets the numbers of each iteration; iteration 0 is the state before training.
        on_samples: gets the responses of each evaluation.

    Raises:
        ConfigError: no reward source; a device that is not there; a reference with another vocabulary; several launched
            processes.
    """

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        reward_fn: RewardSource | None = None,
        model: CausalLM | None = None,
        reference_model: CausalLM | None = None,
        on_metrics: MetricSink = ignore_metrics,
        on_samples: SampleSink = ignore_samples,
    ):
        require_single_process("The PPO trainer")
        if reward_fn is None:
            raise ConfigError("Found no reward source. Pass reward_fn: a RewardModelSource or a function of your own.")
        self.config = config
        self.reward_fn = reward_fn
        self.on_metrics = on_metrics
        self.on_samples = on_samples
        self.tokenizer = tokenizer if tokenizer is not None else load_tokenizer(config.model_name)
        self.chat = ChatFormat(self.tokenizer)
        self.device = choose_device(config.device)
        # Adapters and critic start from random weights.
        with seeded(config.seed):
            self.model, self.reference_model = self._make_models(model, reference_model)
        self.training_client = AsyncTrainingClient(self.model, self.reference_model)
        self.optimizer = self._make_optimizer()
        self.kl_controller = AdaptiveKLController(config.kl_penalty_coef, config.kl_target, config.kl_horizon)
        self.guard = NonFiniteGuard(config.max_non_finite_steps)
        self.params = SamplingParams(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )
        self.iteration = 0
        self.best_step = 0
        self.best_metrics: dict[str, float] = {}
        self._identity: dict[str, Any] = {}

    def train(
        self,
        prompts: Sequence[str | Mapping[str, Any]],
        num_iterations: int | None = None,
        *,
        validation_prompts: Sequence[str | Mapping[str, Any]] = (),
        resume_dir: Path | None = None,
    ) -> dict[str, list[float]]:
        """Sample, judge and update, num_iterations times (default: the config's; 0 trains nothing).

        Args:
            prompts: texts, or mappings with a `prompt`; the other keys reach the reward source as metadata.
            validation_prompts: evaluated every eval_every iterations; the best weights on them are kept.
            resume_dir: folder for checkpoints. A complete one in it is resumed from: weights and metrics of the
                remaining iterations are those of an uninterrupted run, bit for bit.

        Returns:
            One value per iteration of this call: policy_loss, value_loss, kl_divergence (nats per token), entropy (nats
            per token), rewards (mean score), kl_coef.

        Raises:
            DataError: empty prompts, or a reward source that returns a wrong count or something not finite.
            CheckpointError: resume_dir holds another run, or no whole checkpoint.
            TrainingDiverged: max_non_finite_steps optimiser steps in a row had a non-finite loss or gradient.
        """
        total = self.config.num_iterations if num_iterations is None else num_iterations
        train_prompts = self._encode(prompts)
        validation = self._encode(validation_prompts)[: self.config.eval_prompts] if len(validation_prompts) else []
        if resume_dir:
            self._identity = self._identity_of(train_prompts, validation)
            self._resume(resume_dir)
        self.on_metrics(self.iteration, {"progress/total_steps": float(total)})
        if self.iteration == 0 and validation:
            self._evaluate_and_keep_best(validation, resume_dir)
        history: dict[str, list[float]] = {name: [] for name in HISTORY}
        while self.iteration < total:
            metrics = self._iterate(train_prompts)
            if validation and (self.iteration % self.config.eval_every == 0 or self.iteration == total):
                metrics |= self._evaluate_and_keep_best(validation, resume_dir)
            self.on_metrics(self.iteration, metrics)
            for name, metric in HISTORY.items():
                history[name].append(metrics[metric])
            if resume_dir and (self.iteration % self.config.save_every == 0 or self.iteration == total):
                self._save(resume_dir)
        return history

    def evaluate(self, prompts: Sequence[str | Mapping[str, Any]]) -> dict[str, float]:
        """Sample a response to each prompt, with fixed seeds; score, KL and length under `validation/` names."""
        return self._evaluate(self._encode(prompts))

    def generate_responses(self, prompts: Sequence[str], *, seed: int = 0) -> list[str]:
        """One sampled response for each prompt, at the sampling settings of the config."""
        return self._collect(self._encode(prompts), ("generate", seed), _no_scores).responses

    def save_model(self, folder: Path) -> None:
        """Write the policy and its tokenizer as an ordinary model folder, in one step."""
        with publish(folder) as draft:
            save_causal_lm(self.model.base_model, self.tokenizer, draft)

    def close(self) -> None:
        """Stop the training client. Idempotent."""
        self.training_client.shutdown()

    def _iterate(self, prompts: list[EncodedPrompt]) -> dict[str, float]:
        config = self.config
        chosen = choose_prompts(len(prompts), config.batch_size, self.iteration, config.seed)
        rollout = self._collect([prompts[index] for index in chosen], ("rollout", self.iteration), self.reward_fn)
        experience = experience_of(rollout, config, self.kl_controller.value)
        started = time.perf_counter()
        metrics = rollout_metrics(rollout) | {"kl/coef": self.kl_controller.value}
        metrics |= update_policy(self.training_client, self.optimizer, self.guard, experience, config, self.iteration)
        metrics["time/update_s"] = time.perf_counter() - started
        metrics["value/explained_variance"] = explained_variance(
            rollout.old_values, experience.returns, rollout.response_mask
        ).item()
        self.kl_controller.update(metrics[f"kl/ref_{config.kl_target_unit}_mean"], config.batch_size)
        self.iteration += 1
        return metrics

    def _encode(self, prompts: Sequence[str | Mapping[str, Any]]) -> list[EncodedPrompt]:
        limits = [self.config.max_prompt_length]
        context = context_length(self.model.base_model)
        if context is not None:
            limits.append(context - self.config.max_new_tokens)
        longest = min((limit for limit in limits if limit is not None), default=sys.maxsize)
        if longest < 1:
            raise ConfigError(
                f"max_new_tokens={self.config.max_new_tokens} leaves no room for a prompt: "
                f"the model reads {context} tokens. Lower it."
            )
        return encode_prompts(prompts, self.chat, longest)

    def _collect(self, prompts: list[EncodedPrompt], purpose: tuple[str, int], reward: RewardSource) -> Rollout:
        seeds = [stream_seed(self.config.seed, *purpose, row) for row in range(len(prompts))]
        return collect(
            self.training_client,
            self.chat,
            prompts,
            reward,
            self.params,
            seeds=seeds,
            missing_eos_score=self.config.missing_eos_score,
        )

    def _evaluate(self, prompts: list[EncodedPrompt]) -> dict[str, float]:
        rollout = self._collect(prompts, ("validation", 0), self.reward_fn)
        self.on_samples(self.iteration, sample_rows(rollout))
        figures = rollout_metrics(rollout)
        shown = ("reward/score_mean", "kl/ref_sequence_mean", "response/length_mean", "response/eos_fraction")
        metrics = {f"validation/{name.split('/')[1]}": figures[name] for name in shown}
        penalty = self.config.kl_penalty_coef * figures["kl/ref_sequence_mean"]
        metrics["validation/objective"] = figures["reward/score_mean"] - penalty
        return metrics

    def _evaluate_and_keep_best(self, prompts: list[EncodedPrompt], resume_dir: Path | None) -> dict[str, float]:
        """Evaluate; keep the weights when reward less the configured KL penalty is the highest so far."""
        metrics = self._evaluate(prompts)
        if self.iteration == 0:
            self.on_metrics(0, metrics)
        if metrics["validation/objective"] > self.best_metrics.get("validation/objective", -math.inf):
            self.best_step, self.best_metrics = self.iteration, metrics
            if resume_dir:
                self.save_model(resume_dir / "best")
        return metrics

    def _make_models(self, model: CausalLM | None, reference: CausalLM | None) -> tuple[PPOModel, PPOModel | None]:
        """The policy and its reference; None where the policy has adapters to switch off."""
        config = self.config
        base_model = load_causal_lm(model if model is not None else config.model_name, device=self.device)
        if reference is not None:
            require_same_vocabulary(base_model, reference)
        if config.lora is not None:
            base_model = add_lora(cast(PreTrainedModel, base_model), config.lora)
        elif reference is None:
            reference = frozen_copy(base_model)
        policy = PPOModel(base_model).to(self.device).eval()
        return policy, None if reference is None else PPOModel(reference).to(self.device).eval()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        policy = [weight for weight in self.model.base_model.parameters() if weight.requires_grad]
        groups = [
            {"params": policy, "lr": config.learning_rate, "weight_decay": config.weight_decay},
            {
                "params": list(self.model.value_head.parameters()),
                "lr": config.value_learning_rate or config.learning_rate,
                "weight_decay": 0.0,
            },
        ]
        return torch.optim.AdamW(groups, eps=config.adam_eps, fused=True)

    def _save(self, resume_dir: Path) -> None:
        optimizer_tensors, optimizer_state = pack_optimizer(self.optimizer)
        state = {
            "identity": self._identity,
            "iteration": self.iteration,
            "kl_controller": self.kl_controller.state_dict(),
            "guard": self.guard.state_dict(),
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "optimizer": optimizer_state,
        }
        save_checkpoint(
            resume_dir, self.iteration, {"weights": self.model.state_dict(), "optimizer": optimizer_tensors}, state
        )

    def _identity_of(self, prompts: list[EncodedPrompt], validation: list[EncodedPrompt]) -> dict[str, Any]:
        """What must be the same for a checkpoint to belong to a run."""
        frozen = self.model if self.reference_model is None else self.reference_model
        return {
            "config": self.config.model_dump(mode="json", exclude=_FREE_SETTINGS),
            "prompts": rows_sha256([prompt.text, prompt.ids, dict(prompt.metadata)] for prompt in prompts),
            "validation": rows_sha256([prompt.text, prompt.ids, dict(prompt.metadata)] for prompt in validation),
            "frozen": weights_sha256(frozen_weights(frozen.base_model)),
        }

    def _resume(self, resume_dir: Path) -> None:
        path = latest_checkpoint(resume_dir)
        if path is None:
            return
        checkpoint = load_checkpoint(path)
        require_same_run(path, checkpoint.state["identity"], self._identity)
        self.model.load_state_dict(checkpoint.tensors["weights"])
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], checkpoint.state["optimizer"])
        self.kl_controller.load_state_dict(checkpoint.state["kl_controller"])
        self.guard.load_state_dict(checkpoint.state["guard"])
        self.best_step, self.best_metrics = checkpoint.state["best_step"], checkpoint.state["best_metrics"]
        self.iteration = checkpoint.state["iteration"]


def train(
    config: PPOConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource,
    reference: str | Path | CausalLM | None = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a policy on `data["train"]` prompts and publish the best one on `data["validation"]`, else the last one.

    The common interface of all trainers; see PPOTrainer for the errors.

    Args:
        config: settings.
        data: rows with a `prompt`; their other columns reach the reward source.
        output_dir: replaced by the new model folder, in one step.
        reward: scores the responses.
        reference: causal language model or its folder; the starting policy when None.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up.
        on_metrics, on_samples: see PPOTrainer.
    """
    last: dict[str, float] = {}

    def report(step: int, metrics: Mapping[str, float]) -> None:
        last.update(metrics)
        on_metrics(step, metrics)

    trainer = PPOTrainer(
        config,
        reward_fn=reward,
        reference_model=None if reference is None else load_causal_lm(reference),
        on_metrics=report,
        on_samples=on_samples,
    )
    with contextlib.closing(trainer), checkpoint_folder(resume_dir, output_dir) as checkpoints:
        trainer.train(data["train"], validation_prompts=data.get("validation", ()), resume_dir=checkpoints)
        if not trainer.best_metrics:
            trainer.best_step = trainer.iteration
            trainer.save_model(checkpoints / "best")
        with publish(output_dir) as draft:
            shutil.copytree(checkpoints / "best", draft, dirs_exist_ok=True)
    return TrainResult(output_dir, trainer.best_step, last, trainer.best_metrics)


def _no_scores(prompts: Sequence[str], responses: Sequence[str], metadata: object = None) -> list[float]:
    return [0.0] * len(responses)
