"""The PPO trainer: a critic beside the policy, an adaptive KL penalty in the rewards."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import datasets
from torch import nn

from rlcore.configs import PPOConfig, RolloutConfig
from rlcore.functional.losses import explained_variance
from rlcore.kl_control import AdaptiveKLController
from rlcore.models import CausalLM, PPOModel
from rlcore.ppo.update import experience_of, losses_of, ppo_loss, value_warmup_loss
from rlcore.results import MetricSink, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.rollout import Reward, Rollout, RolloutTrainer, rollout_metrics, train_and_publish


class PPOTrainer(RolloutTrainer[PPOConfig]):
    """Train a policy against a reward source with PPO. Arguments, methods and errors: see RolloutTrainer.

    `train` returns one value per iteration: policy_loss, value_loss, kl_divergence (mean k1 to the reference, nats per
    token), entropy (nats per token), rewards (mean score), kl_coef.

    Attributes:
        model: the PPOModel that is trained.
        kl_controller: holds the coefficient of the penalty.
    """

    HISTORY: ClassVar[Mapping[str, str]] = {
        "policy_loss": "policy/loss",
        "value_loss": "value/loss",
        "kl_divergence": "kl/ref_token_mean",
        "entropy": "policy/entropy_mean",
        "rewards": "reward/score_mean",
        "kl_coef": "kl/coef",
    }

    CONFIG: ClassVar[type[RolloutConfig]] = PPOConfig

    model: PPOModel

    @cached_property
    def kl_controller(self) -> AdaptiveKLController:
        """The controller of the penalty's coefficient."""
        config = self.config
        return AdaptiveKLController(config.kl_penalty_coef, config.kl_target, config.kl_horizon)

    def trained_module(self, base_model: CausalLM) -> nn.Module:
        """The language model with a critic on its last hidden states."""
        return PPOModel(base_model)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Policy and critic, each with its learning rate; the critic's weights do not decay."""
        config = self.config
        policy = [weight for weight in self.model.base_model.parameters() if weight.requires_grad]
        return [
            {"params": policy, "lr": config.learning_rate, "weight_decay": config.weight_decay},
            {
                "params": list(self.model.value_head.parameters()),
                "lr": config.value_learning_rate or config.learning_rate,
                "weight_decay": 0.0,
            },
        ]

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Advantages, ppo_epochs passes of clipped updates, one move of the KL controller."""
        config, coef = self.config, self.kl_controller.value
        experience = experience_of(rollout, config, coef)
        loss = value_warmup_loss if self.iteration < config.value_warmup_iterations else ppo_loss
        metrics = self.update(len(rollout), losses_of(experience, config, loss), config.ppo_epochs)
        metrics["kl/coef"] = coef
        metrics["value/explained_variance"] = explained_variance(
            experience.old_values, experience.returns, rollout.response_mask
        ).item()
        mean_kl = rollout_metrics(rollout)[f"kl/ref_{config.kl_target_unit}_mean"]
        self.kl_controller.update(mean_kl, len(rollout))
        return metrics

    def extra_state(self) -> dict[str, Any]:
        """State of the KL controller."""
        return {"kl_controller": self.kl_controller.state_dict()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the coefficient of the checkpoint."""
        self.kl_controller.load_state_dict(state["kl_controller"])


def train(
    config: PPOConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: Reward | None = None,
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
        reward: scores the responses, in any form of `reward_source_of`; by their length when None.
        reference: causal language model or its folder; the starting policy when None.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up.
        on_metrics, on_samples: see PPOTrainer.
    """
    trainer = PPOTrainer(
        config,
        reward_fn=reward,
        reference_model=reference,
        on_metrics=on_metrics,
        on_samples=on_samples,
    )
    return train_and_publish(trainer, data, output_dir, resume_dir)
