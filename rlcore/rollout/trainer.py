"""The loop that trainers on sampled responses share: sample, judge, learn, evaluate, save; and exact resume."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from rlcore.checkpoint import publish
from rlcore.configs import GRPOConfig, PPOConfig, RolloutConfig
from rlcore.errors import CheckpointError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, in_first_process, in_shares, training_device
from rlcore.health import NegativeKLWatch, NonFiniteGuard
from rlcore.models import CausalLM, language_model_of, load_tokenizer, save_causal_lm, seeded
from rlcore.results import MetricSink, SampleSink, ignore_metrics, ignore_samples
from rlcore.reward_functions import checked_scores, responses_per_prompt
from rlcore.rollout.arguments import iteration_count, require_settings, sampling_params
from rlcore.rollout.checkpoints import RunCheckpoints
from rlcore.rollout.collection import Response, Rollout, collect_rollout, row_seeds, sample_responses
from rlcore.rollout.figures import repeatable
from rlcore.rollout.interruptions import IterationMark
from rlcore.rollout.policy import load_policy, prompt_room, require_own_tokens
from rlcore.rollout.prompts import EncodedPrompt, Prompts, are_given, choose_prompts, encode_prompts
from rlcore.rollout.reward_sources import Reward, require_own_scores, reward_source_of, rivals, score_responses
from rlcore.rollout.run import RolloutRun, evaluate
from rlcore.rollout.update import LossesOfStep, update_rollout
from rlcore.sampling import SamplingParams

ConfigT = TypeVar("ConfigT", PPOConfig, GRPOConfig)


class RolloutTrainer(ABC, Generic[ConfigT]):
    """Trains a policy on responses that it samples itself.

    A subclass says what is trained (`trained_module`, `parameter_groups`) and how it learns from a rollout (`learn`).
    It may do in its own way what comes before: write prompts (`chat_format`, `encode`), choose them (`choose`), sample
    (`respond`), score (`score`, `check_scores`). What it keeps between iterations is its `extra_state`.

    Dropout stays off throughout, so that the probability ratio is exactly 1 before the first update of an iteration.
    The model is reached through `training_client` alone. Launched in several processes, each samples and scores its
    share of the rows; the rollout, its figures and the history are the same in all, and process 0 alone writes and
    reports.

    Args:
        config: settings.
        tokenizer: loaded from config.model_name when None.
        reward_fn: what scores responses, in any form of `reward_source_of`; by their length when None.
        model: causal language model, trained in place; loaded from config.model_name when None.
        reference_model: frozen model of the KL penalty, or its folder; a copy of the model when None, and with LoRA the
            bare base.
        on_metrics: gets the numbers of each iteration; iteration 0 is the state before training.
        on_samples: gets the responses of each evaluation.
        reward_weights: weights by name, where reward_fn is a mapping; 1 where none is given.

    Attributes:
        training_client: the one way to the model.
        iteration: iterations done.
        best_step, best_metrics: the best evaluation so far and its iteration; empty metrics before the first.
        final_metrics: what was reported last, by name.

    Raises:
        ConfigError: an unknown form of reward; a device that is not there; a reference with another vocabulary; a
            tokenizer without end or padding token; a model without room for a prompt; or see load_policy.
    """

    CONFIG: ClassVar[type[RolloutConfig]]
    """Class of the settings."""
    HISTORY: ClassVar[Mapping[str, str]]
    """Key of the returned history, and the metric of each iteration behind it."""
    EVALUATION_HISTORY: ClassVar[Mapping[str, str]] = {
        "eval_rewards": "validation/score_mean",
        "eval_objective": "validation/objective",
    }
    """The same for each evaluation."""

    config: ConfigT

    def __init__(
        self,
        config: ConfigT,
        tokenizer: PreTrainedTokenizerBase | None = None,
        reward_fn: Reward | None = None,
        model: CausalLM | None = None,
        reference_model: CausalLM | str | Path | None = None,
        on_metrics: MetricSink = ignore_metrics,
        on_samples: SampleSink = ignore_samples,
        *,
        reward_weights: Mapping[str, float] | None = None,
    ):
        require_settings(config, self.CONFIG, tokenizer, on_metrics=on_metrics, on_samples=on_samples)
        self.config = config
        self.on_metrics, self.on_samples = on_metrics, on_samples
        self.tokenizer = tokenizer if tokenizer is not None else load_tokenizer(config.model_name)
        self.chat = self.chat_format()
        device = training_device(config.device)
        self.reward = reward_source_of(reward_fn, self.tokenizer, reward_weights, self.check_scores, str(device))
        # Adapters and critic start from random weights.
        with seeded(config.seed):
            base_model, self.reference_model = load_policy(config, model, reference_model, device)
            self.model = self.trained_module(base_model).to(device).eval()
        require_own_tokens(base_model, self.chat)
        self.longest_prompt = prompt_room(base_model, config)
        self.training_client = AsyncTrainingClient(self.model, self.reference_model)
        self.optimizer = torch.optim.AdamW(self.parameter_groups(), eps=config.adam_eps, fused=True)
        self.guard = NonFiniteGuard(config.max_non_finite_steps)
        self.kl_watch, self.mark = NegativeKLWatch(), IterationMark()
        self.params = SamplingParams(config.max_new_tokens, config.temperature, config.top_k, config.top_p)
        self.iteration = self.best_step = 0
        self.best_metrics: dict[str, float] = {}
        self.final_metrics: dict[str, float] = {}
        self.checkpoints = RunCheckpoints(self.training_client, self.optimizer, config)

    # What a subclass says.

    @abstractmethod
    def trained_module(self, base_model: CausalLM) -> nn.Module:
        """What is trained: the language model itself, or a PPOModel around it."""

    @abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained weights of self.model, as groups for AdamW."""

    @abstractmethod
    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Update the policy, once an iteration; returns the metrics of HISTORY that are not the rollout's, and more."""

    def chat_format(self) -> ChatFormat:
        """How the tokenizer writes prompts."""
        return ChatFormat(self.tokenizer)

    def check_scores(self, scores: Any, count: int, source: str) -> list[float]:
        """The scores that a source returned for so many responses, where they are acceptable."""
        return checked_scores(scores, count, source)

    def extra_state(self) -> dict[str, Any]:
        """JSON that the next iteration needs besides weights, optimizer and counts."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most have no such state
        """Go on from extra_state()."""

    def encode(self, prompts: Prompts) -> list[EncodedPrompt]:
        """The prompts as tokens."""
        return encode_prompts(prompts, self.chat, self.longest_prompt)

    def held_out(self, prompts: Prompts) -> list[EncodedPrompt]:
        """The prompts of an evaluation as tokens, where the reward can judge it; see require_own_scores."""
        require_own_scores(self.reward)
        return self.encode(prompts)

    def choose(self, prompts: Sequence[EncodedPrompt], iteration: int) -> list[int]:
        """Which prompts are answered in an iteration: batch_size indices."""
        config, copies = self.config, responses_per_prompt(self.reward)
        return choose_prompts(len(prompts), config.batch_size, iteration, config.seed, copies)

    def respond(self, prompts: Sequence[EncodedPrompt], params: SamplingParams, seeds: Sequence[int]) -> list[Response]:
        """One response for each prompt of this process."""
        return sample_responses(self.training_client, self.chat, prompts, params, seeds)

    def score(
        self, prompts: Sequence[EncodedPrompt], responses: Sequence[Response]
    ) -> tuple[list[float], dict[str, list[float]]]:
        """The score of each response of this process, and what it is made of; see score_responses."""
        texts = [response.text for response in responses]
        return score_responses(self.reward, prompts, texts, self.check_scores)

    # What people call.

    def train(
        self,
        prompts: Prompts,
        num_iterations: int | None = None,
        *,
        validation_prompts: Prompts | None = None,
        resume_dir: Path | None = None,
    ) -> dict[str, list[float]]:
        """Sample, judge and learn until num_iterations are done.

        Args:
            prompts: texts, or mappings with a `prompt`; the other keys reach the reward source as metadata.
            num_iterations: of the whole run, those of earlier calls and of a checkpoint included; the config's when
                None, and 0 trains nothing.
            validation_prompts: evaluated every eval_every iterations; the best weights on them are kept.
            resume_dir: folder for checkpoints. A complete one in it is resumed from: weights and metrics of the
                remaining iterations are those of an uninterrupted run, bit for bit, where the reward source says the
                same of the same responses.

        Returns:
            the keys of HISTORY with one value for each iteration of this call, and with validation prompts those of
            EVALUATION_HISTORY with one for each evaluation.

        Raises:
            ConfigError: num_iterations is no whole number, or negative; validation prompts beside a reward that
                compares responses.
            RLCoreError: an earlier call was interrupted inside an iteration, and no checkpoint was taken up.
            DataError: empty prompts, or a reward source that returns a wrong count or something not finite.
            CheckpointError: resume_dir holds another run or one that is going on, or no whole checkpoint.
            TrainingDiverged: max_non_finite_steps optimiser steps in a row had a non-finite loss or gradient.
        """
        total = iteration_count(self.config, num_iterations)
        train_prompts = self.encode(prompts)
        held_out = self.held_out(validation_prompts) if are_given(validation_prompts) else []
        folder = None if resume_dir is None else Path(resume_dir)
        return RolloutRun(self, total, train_prompts, held_out[: self.config.eval_prompts], folder).to_the_end()

    def evaluate(self, prompts: Prompts) -> dict[str, float]:
        """Sample a response to each prompt, with fixed seeds; score, KL and length under `validation/` names.

        Raises:
            ConfigError: the reward compares responses, see require_own_scores.
            DataError: see train.
        """
        return evaluate(self, self.held_out(prompts))

    def generate_responses(
        self,
        prompts: Prompts,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        seed: int = 0,
    ) -> list[str]:
        """One sampled response for each prompt, as texts in the order of the prompts; nothing is scored.

        Args:
            prompts: texts, or mappings with a `prompt`.
            max_new_tokens, temperature, top_k, top_p: as in the config, which they replace where they are given;
                temperature 0 takes the most likely tokens.
            seed: names the random stream; equal seeds give equal responses as long as the policy does not change.

        Raises:
            ConfigError: a setting is out of range.
            DataError: a prompt is none, or leaves no room for max_new_tokens.
        """
        given = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        params = sampling_params(self.params, given)
        encoded = self.encode(prompts)

        def own(rows: list[int]) -> list[Response]:
            seeds = row_seeds(self.config.seed, ("generate", seed), rows)
            return self.respond([encoded[row] for row in rows], params, seeds)

        return [response.text for response in in_shares(self.training_client, len(encoded), own)]

    def save_model(self, folder: Path) -> None:
        """Write the policy and its tokenizer as an ordinary model folder, in one step. Adapters are merged into it."""

        def save() -> None:
            with publish(folder) as draft:
                save_causal_lm(language_model_of(self.model), self.tokenizer, draft)

        in_first_process(self.training_client, save)

    def save_checkpoint(self, folder: Path) -> Path:
        """Write everything that training needs to go on to `<folder>/step-<iteration>`, in one step; returns its path.

        The last two checkpoints of a folder and that of best_step are kept.

        Raises:
            CheckpointError: a weight is not finite. Nothing was written.
            RLCoreError: training was interrupted inside an iteration. Nothing was written.
        """
        self.mark.require_whole()
        state = {
            "iteration": self.iteration,
            "guard": self.guard.state_dict(),
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "final_metrics": repeatable(self.final_metrics),
            "extra": self.extra_state(),
        }
        return self.checkpoints.write(Path(folder), self.iteration, state, best_step=self.best_step)

    def load_checkpoint(self, folder: Path) -> None:
        """Go on from a checkpoint: one that `save_checkpoint` wrote, or the newest whole one of a folder of them.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of other settings, weights or data.
        """
        if not self.take_up(Path(folder)):
            raise CheckpointError(
                f"{folder}: found no checkpoint, expected one that save_checkpoint wrote. Name its folder."
            )

    def load_best(self, folder: Path) -> None:
        """Give the policy the weights of best_step, the last iteration where nothing was evaluated, from a resume_dir.

        Raises:
            CheckpointError: the checkpoint of that step is missing or damaged.
        """
        if not self.best_metrics:
            self.best_step = self.iteration
        elif self.best_step != self.iteration:
            self.checkpoints.put_weights(Path(folder), self.best_step)

    def close(self) -> None:
        """Stop the training client. Idempotent."""
        self.training_client.shutdown()

    def collect(self, prompts: Sequence[EncodedPrompt], indices: Sequence[int], purpose: tuple[str, int]) -> Rollout:
        """Responses to the prompts at the indices, measured under policy, reference, critic and reward source.

        Args:
            prompts: all prompts.
            indices: which of them are answered; the rows of the rollout.
            purpose: names the random stream of the rows, together with the seed.

        Raises:
            DataError: the reward source returned a wrong count, or a score that is not a finite number.
        """
        asked = [prompts[index] for index in indices]
        return collect_rollout(
            self.training_client,
            self.chat,
            asked,
            indices,
            lambda asked, rows: self.respond(asked, self.params, row_seeds(self.config.seed, purpose, rows)),
            self.score,
            temperature=self.config.temperature,
            missing_eos_score=self.config.missing_eos_score,
            together=rivals(self.reward, asked),
        )

    def update(self, row_count: int, losses_of: LossesOfStep, epochs: int) -> dict[str, float]:
        """The optimiser steps of an iteration over so many responses; see update_rollout."""
        return update_rollout(
            self.training_client,
            self.optimizer,
            self.guard,
            row_count,
            losses_of,
            config=self.config,
            epochs=epochs,
            iteration=self.iteration,
        )

    def take_up(self, folder: Path) -> bool:
        """Go on from the newest checkpoint of a folder; whether there is one. Errors: see load_checkpoint."""
        state = self.checkpoints.take_up(folder)
        if state is None:
            return False
        self.guard.load_state_dict(state["guard"])
        self.load_extra_state(state["extra"])
        self.best_step, self.best_metrics = state["best_step"], state["best_metrics"]
        self.iteration, self.final_metrics = state["iteration"], state["final_metrics"]
        self.mark.end()
        return True
