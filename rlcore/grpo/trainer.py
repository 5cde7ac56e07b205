"""The trainer without a critic (GRPO, RLOO): several responses to each prompt, judged against each other."""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast

import datasets
from torch import nn
from transformers import PreTrainedTokenizerBase

from rlcore.configs import GRPOConfig, RolloutConfig
from rlcore.environments import EpisodeEnvironment, Tools
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.grpo.environment import environment_rows, episode_scores, with_case_idx
from rlcore.grpo.update import experience_of, group_metrics, losses_of
from rlcore.models import CausalLM, language_model_of
from rlcore.results import MetricSink, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.reward_functions import checked_scores_or_nan
from rlcore.rollout import (
    EncodedPrompt,
    Prompts,
    Response,
    Reward,
    Rollout,
    RolloutTrainer,
    accepted_scores,
    choose_prompts,
    train_and_publish,
)
from rlcore.rollout.turns import Episode, play_episodes
from rlcore.sampling import SamplingParams

logger = logging.getLogger(__name__)


class GRPOTrainer(RolloutTrainer[GRPOConfig]):
    """Train a policy against a reward source, or in an environment of one's own, without a critic.

    Every prompt of an iteration is answered num_generations times. A response that has no score (None or NaN) is left
    out; one that repeats the score of its whole group teaches nothing but to stay near the reference.

    `train` returns one value per iteration: policy_loss, kl_divergence (mean k1 to the reference, nats per token),
    entropy (nats per token), rewards (mean score; NaN where no response has one). Other methods: see RolloutTrainer.

    Args:
        config: settings.
        tokenizer, reward_fn, model, reference_model, on_metrics, on_samples, reward_weights: see RolloutTrainer.
        environment: brings prompts, scores and tools in place of a reward_fn; see EpisodeEnvironment.

    Attributes:
        model: the causal language model that is trained, with its adapters if it has some.
        environment: as passed.
        tools: what the environment offers; None without an environment.

    Raises:
        ConfigError: a reward_fn and an environment; several turns without tools that run; tools that the chat template
            does not show, or cannot go on behind; or see RolloutTrainer.
    """

    HISTORY: ClassVar[Mapping[str, str]] = {
        "policy_loss": "policy/loss",
        "kl_divergence": "kl/ref_token_mean",
        "entropy": "policy/entropy_mean",
        "rewards": "reward/score_mean",
    }

    CONFIG: ClassVar[type[RolloutConfig]] = GRPOConfig

    model: CausalLM

    def __init__(
        self,
        config: GRPOConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        reward_fn: Reward | None = None,
        model: CausalLM | None = None,
        reference_model: CausalLM | str | Path | None = None,
        environment: EpisodeEnvironment | None = None,
        on_metrics: MetricSink = ignore_metrics,
        on_samples: SampleSink = ignore_samples,
        *,
        reward_weights: Mapping[str, float] | None = None,
    ):
        if reward_fn is not None and environment is not None:
            raise ConfigError("Found a reward_fn and an environment, expected one that scores. Leave one of them out.")
        self.environment = environment
        self.tools = None if environment is None else Tools(environment)
        super().__init__(
            config,
            tokenizer,
            reward_fn,
            model,
            reference_model,
            on_metrics,
            on_samples,
            reward_weights=reward_weights,
        )

    def train(
        self,
        prompts: Prompts | None = None,
        num_iterations: int | None = None,
        *,
        validation_prompts: Prompts | None = None,
        resume_dir: Path | None = None,
    ) -> dict[str, list[float]]:
        """As RolloutTrainer.train; without prompts, on the data set of the environment.

        Raises:
            DataError: neither prompts nor an environment, a data set without the column `prompt`, or see there.
        """
        rows = self.environment_prompts() if prompts is None else prompts
        return super().train(rows, num_iterations, validation_prompts=validation_prompts, resume_dir=resume_dir)

    def environment_prompts(self) -> list[dict[str, Any]]:
        """The rows of the environment's data set, with `prompt` and `case_idx`.

        Raises:
            DataError: there is no environment, or its data set has no column `prompt`.
        """
        if self.environment is None:
            raise DataError("Found neither prompts nor an environment. Pass the prompts to train on.")
        return environment_rows(self.environment, self.tokenizer)

    def trained_module(self, base_model: CausalLM) -> nn.Module:
        """The language model itself."""
        return base_model

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The policy's trained weights."""
        config = self.config
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        return [{"params": weights, "lr": config.learning_rate, "weight_decay": config.weight_decay}]

    def chat_format(self) -> ChatFormat:
        """How the tokenizer writes prompts, with the environment's tools in them.

        Raises:
            ConfigError: max_turns, tools and chat template do not fit together.
        """
        _check_turns(self.config.max_turns, self.tools)
        chat = ChatFormat(self.tokenizer, () if self.tools is None else self.tools.schemas)
        if self.config.max_turns > 1:
            chat.require_tool_results()
        return chat

    def check_scores(self, scores: Any, count: int, source: str) -> list[float]:
        """Finite numbers, or NaN for a response without a score."""
        return checked_scores_or_nan(scores, count, source)

    def encode(self, prompts: Prompts) -> list[EncodedPrompt]:
        """The prompts as tokens, those of an environment with their case."""
        encoded = super().encode(prompts)
        return encoded if self.environment is None else with_case_idx(encoded)

    def choose(self, prompts: Sequence[EncodedPrompt], iteration: int) -> list[int]:
        """The prompts of an iteration, each num_generations times in a row."""
        config = self.config
        return choose_prompts(len(prompts), config.batch_size, iteration, config.seed, config.num_generations)

    def respond(self, prompts: Sequence[EncodedPrompt], params: SamplingParams, seeds: Sequence[int]) -> list[Response]:
        """One response for each prompt of this process; in an environment an episode."""
        tools = self.tools
        if tools is None:
            return super().respond(prompts, params, seeds)

        def play(model: nn.Module, rows: Sequence[tuple[EncodedPrompt, int]]) -> list[Episode]:
            return play_episodes(
                language_model_of(model),
                self.chat,
                tools,
                [prompt for prompt, _ in rows],
                params,
                seeds=[seed for _, seed in rows],
                max_turns=self.config.max_turns,
            )

        return list(chain(*self.training_client.evaluate_in_parts(list(zip(prompts, seeds, strict=True)), play)))

    def score(
        self, prompts: Sequence[EncodedPrompt], responses: Sequence[Response]
    ) -> tuple[list[float], dict[str, list[float]]]:
        """The score of each response of this process, from the reward source or the environment."""
        if self.environment is None:
            return super().score(prompts, responses)
        episodes = cast(Sequence[Episode], responses)
        scores = episode_scores(self.environment, self.training_client, self.tokenizer, prompts, episodes)
        source = f"{type(self.environment).__name__}.score_episode"
        return accepted_scores(scores, len(episodes), source, self.check_scores), {}

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Advantages once, then grpo_epochs passes of clipped updates."""
        config = self.config
        experience = experience_of(rollout, config)
        metrics = group_metrics(rollout, experience)
        if self.training_client.processes.is_first:
            _warn_of_waste(rollout, metrics, self.iteration)
        return metrics | self.update(len(rollout), losses_of(experience, config), config.grpo_epochs)


def train(
    config: GRPOConfig,
    data: datasets.DatasetDict | None,
    output_dir: Path,
    *,
    reward: Reward | None = None,
    reference: str | Path | CausalLM | None = None,
    environment: EpisodeEnvironment | None = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a policy on `data["train"]` prompts and publish the best one on `data["validation"]`, else the last one.

    The common interface of all trainers; see GRPOTrainer for the errors.

    Args:
        config: settings.
        data: rows with a `prompt`; their other columns reach the reward source. None trains on the data set of the
            environment.
        output_dir: replaced by the new model folder, in one step.
        reward: scores the responses, in any form of `reward_source_of`; by their length when None.
        reference: causal language model or its folder; the starting policy when None.
        environment: brings prompts, scores and tools in place of a reward.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up.
        on_metrics, on_samples: see GRPOTrainer.
    """
    trainer = GRPOTrainer(
        config,
        reward_fn=reward,
        reference_model=reference,
        environment=environment,
        on_metrics=on_metrics,
        on_samples=on_samples,
    )
    splits: Mapping[str, Prompts] = {"train": trainer.environment_prompts()} if data is None else data
    return train_and_publish(trainer, splits, output_dir, resume_dir)


def _check_turns(max_turns: int, tools: Tools | None) -> None:
    runnable = tools is not None and tools.runnable
    if max_turns > 1 and not runnable:
        raise ConfigError(
            f"max_turns={max_turns}: found no environment with call_tool(), without which there is one turn. "
            "Pass one, or set max_turns to 1."
        )
    if max_turns == 1 and runnable:
        logger.warning("max_turns=1: call_tool() of the environment is never run. Set max_turns to 2 or more.")


def _warn_of_waste(rollout: Rollout, metrics: Mapping[str, float], iteration: int) -> None:
    """Say so where an iteration, or a whole group of it, has nothing to learn from."""
    if metrics["policy/learned_fraction"] == 0:
        logger.warning(
            "Iteration %d learns from none of its %d responses: %.0f %% were cut by the length limit, %.0f %% have no "
            "score. Raise max_new_tokens, or look at the reward source.",
            iteration + 1,
            len(rollout),
            100 * rollout.truncated.float().mean().item(),
            100 * metrics["reward/missing_fraction"],
        )
    elif metrics["reward/unscored_group_count"]:
        logger.warning(
            "Iteration %d: %.0f groups have no score at all.", iteration + 1, metrics["reward/unscored_group_count"]
        )
