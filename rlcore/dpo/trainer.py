"""The preference trainer: a policy, its frozen reference, and runs over preference pairs."""

import math
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.checkpoint import publish
from rlcore.configs import DPOConfig
from rlcore.dpo.answers import sampled_answers
from rlcore.dpo.dataset import PreferenceDataset, pairs_of
from rlcore.dpo.loss import ReferencedPairs
from rlcore.dpo.reference import kept_on_disk, measure_reference
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import (
    CausalLM,
    add_lora,
    choose_device,
    context_length,
    frozen_copy,
    frozen_weights,
    load_causal_lm,
    load_tokenizer,
    require_same_vocabulary,
    require_separable,
    save_causal_lm,
    seeded,
    vocabulary_size,
)
from rlcore.pair_training import PairPlan, PairRun, by_length, evaluate_pairs, on_first, shared_checkpoint_folder
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.run_folder import trained_weights, weights_sha256

HISTORY = {
    "loss": "dpo/loss",
    "accuracy": "dpo/accuracy",
    "reward_margin": "dpo/margin_mean",
    "chosen_rewards": "dpo/chosen_reward_mean",
    "rejected_rewards": "dpo/rejected_reward_mean",
}
"""What training returns for each optimiser step, and the metric behind each list."""

EVALUATION = {
    "eval_loss": "validation/loss",
    "eval_accuracy": "validation/accuracy",
    "eval_margin": "validation/margin_mean",
}
"""The same for each evaluation."""

# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "save_every", "logging_steps", "eval_prompts"}


class DPOTrainer:
    """Train a policy on preference pairs (Rafailov et al. 2023).

    Dropout stays off throughout, so that a policy that equals its reference has loss ln 2 and margin 0 on every pair.
    Launched in several processes, these share the pairs; batch_size counts those of all.

    Args:
        config: settings.
        tokenizer: loaded from config.model_name when None.
        model: causal language model, trained in place; loaded from config.model_name when None.
        reference_model: frozen by the trainer. When None: a copy of the model, with LoRA the bare base, and none at all
            when reference_free.
        on_metrics: gets the numbers of a run, every logging_steps and eval_every optimiser steps.
        on_samples: gets, at each evaluation, sampled answers to up to eval_prompts validation prompts.

    Attributes:
        training_client: everything that reaches the model goes through it.

    Raises:
        ConfigError: a device that is not there; a reference with another vocabulary, or one beside reference_free; a
            model whose output layer cannot be called apart.
    """

    def __init__(
        self,
        config: DPOConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        model: PreTrainedModel | None = None,
        reference_model: PreTrainedModel | None = None,
        on_metrics: MetricSink = ignore_metrics,
        on_samples: SampleSink = ignore_samples,
    ):
        if config.reference_free and reference_model is not None:
            raise ConfigError("Found a reference_model with reference_free=True. Leave one of them out.")
        self.config = config
        self.on_metrics, self.on_samples = on_metrics, on_samples
        device = choose_device(config.device)
        self.tokenizer = tokenizer if tokenizer is not None else load_tokenizer(config.model_name)
        self.chat = ChatFormat(self.tokenizer)
        self.model = load_causal_lm(model if model is not None else config.model_name)
        require_separable(self.model)
        if config.lora is not None:
            self.model = _with_adapters(self.model, config)
        elif reference_model is None and not config.reference_free:
            reference_model = frozen_copy(cast(PreTrainedModel, self.model))
        self.reference_model = reference_model
        if reference_model is not None:
            require_same_vocabulary(self.model, reference_model)
        self.training_client = AsyncTrainingClient(self.model, reference_model, device=device)
        self._ref_sequence_logprobs: dict[str, torch.Tensor] = {}

    def train(
        self,
        dataset: PreferenceDataset,
        eval_dataset: PreferenceDataset | None = None,
        *,
        resume_dir: Path | None = None,
    ) -> dict[str, list[float]]:
        """Pass num_epochs times over the pairs, with an optimiser and a schedule of their own.

        Args:
            dataset: pairs to train on.
            eval_dataset: evaluated every eval_every optimiser steps and after the last one.
            resume_dir: folder for checkpoints; nothing is written without it. A complete checkpoint in it is resumed
                from: weights and metrics of the remaining steps are those of an uninterrupted run, bit for bit. The
                checkpoint with the least loss on eval_dataset stays.

        Returns:
            One value for each optimiser step of this call, means over its pairs: loss (nats per pair), accuracy,
            reward_margin, chosen_rewards, rejected_rewards (reward units). With eval_dataset also one for each
            evaluation: eval_loss, eval_accuracy, eval_margin.

        Raises:
            ConfigError: a pair is longer than config.max_length or the model's context.
            DataError: found something else than a PreferenceDataset, one of another tokenizer, or a token that is not
                in the model's vocabulary.
            CheckpointError: resume_dir holds another run, or no whole checkpoint.
            TrainingDiverged: max_non_finite_steps optimiser steps in a row had a non-finite loss or gradient.
            DeviceMemoryError: the device has no room for a single pair.
        """
        history = self.start(dataset, eval_dataset, resume_dir=resume_dir).to_the_end()
        names = HISTORY if eval_dataset is None else HISTORY | EVALUATION
        return {name: history.get(metric, []) for name, metric in names.items()}

    def start(
        self,
        dataset: PreferenceDataset,
        eval_dataset: PreferenceDataset | None = None,
        *,
        resume_dir: Path | None = None,
    ) -> PairRun:
        """The run that `train` takes to its end; it knows its best step and can go back to it. Same arguments."""
        self._check_pairs("dataset", dataset)
        if eval_dataset is not None:
            self._check_pairs("eval_dataset", eval_dataset)
        self.model.eval()
        folder = None if resume_dir is None else Path(resume_dir)
        plan = _plan_of(self.config, len(dataset))
        first_epoch = [by_length(dataset, rows) for rows in plan.epoch(0)]
        return PairRun(
            plan,
            self.training_client,
            self._with_reference(dataset, folder, first_epoch),
            None if eval_dataset is None else self._with_reference(eval_dataset, folder),
            folder=folder,
            identity=self._identity(dataset, eval_dataset) if folder else {},
            figures=dataset.figures(),
            on_metrics=self.on_metrics,
            on_evaluated=partial(self._answer, eval_dataset),
        )

    def evaluate(self, dataset: PreferenceDataset) -> dict[str, float]:
        """eval_loss (nats per pair), eval_accuracy (ties are no success) and eval_margin (reward units), as means.

        Raises:
            ConfigError, DataError: see train.
        """
        self._check_pairs("dataset", dataset)
        pairs = self._with_reference(dataset, None)
        measures = evaluate_pairs(self.training_client, pairs, self.config.batch_size)
        return {name: measures[metric.replace("validation/", "dpo/")] for name, metric in EVALUATION.items()}

    def save_model(self, folder: Path) -> None:
        """Write the policy and its tokenizer as an ordinary model folder, adapters merged, in one step."""
        on_first(self.training_client, partial(_publish, self.model, self.tokenizer, folder))

    def close(self) -> None:
        """Stop the training client. Idempotent."""
        self.training_client.shutdown()

    def _with_reference(
        self, dataset: PreferenceDataset, folder: Path | None, steps: list[list[int]] | None = None
    ) -> ReferencedPairs:
        """The pairs with their reference log-probabilities, measured unless they are known.

        Args:
            dataset: the pairs.
            folder: where measured ones are kept; None keeps them in memory alone.
            steps: rows as the policy will see them first; None is for an evaluation, which orders all rows by length.
        """
        config, pad_id = self.config, self.chat.pad_id
        if config.reference_free:
            return ReferencedPairs(dataset, torch.zeros(2, len(dataset)), pad_id, config)
        key = dataset.sha256()
        if key not in self._ref_sequence_logprobs:
            client = self.training_client
            steps = [by_length(dataset)] if steps is None else steps
            measure = partial(measure_reference, client, dataset, steps, pad_id, config.batch_size)
            if folder is None:
                self._ref_sequence_logprobs[key] = measure()
            else:
                name = f"{self._frozen_sha256[:16]}-{key[:16]}"
                self._ref_sequence_logprobs[key] = kept_on_disk(client, folder, name, len(dataset), measure)
        return ReferencedPairs(dataset, self._ref_sequence_logprobs[key], pad_id, config)

    def _identity(self, dataset: PreferenceDataset, eval_dataset: PreferenceDataset | None) -> dict[str, Any]:
        """What must be the same for a checkpoint to belong to a run."""
        return {
            "config": self.config.model_dump(mode="json", exclude=_FREE_SETTINGS),
            "pairs": dataset.sha256(),
            "validation": None if eval_dataset is None else eval_dataset.sha256(),
            "frozen": self._frozen_sha256,
            "start": self._start_sha256,
        }

    @cached_property
    def _frozen_sha256(self) -> str:
        """Hash of the reference, or of the base under the adapters."""
        return weights_sha256(frozen_weights(self.model if self.reference_model is None else self.reference_model))

    @cached_property
    def _start_sha256(self) -> str:
        """Hash of the weights that training changes, before the first run."""
        return weights_sha256(trained_weights(self.model).items())

    def _answer(self, dataset: PreferenceDataset | None, step: int) -> None:
        if dataset is None or not self.config.eval_prompts or self.on_samples is ignore_samples:
            return
        rows = sampled_answers(
            self.training_client,
            self.chat,
            dataset,
            max_prompts=self.config.eval_prompts,
            max_length=self._length_limit(),
            seed=self.config.seed,
        )
        if self.training_client.processes.is_first:
            self.on_samples(step, rows)

    def _check_pairs(self, name: str, dataset: PreferenceDataset) -> None:
        if not isinstance(dataset, PreferenceDataset):
            raise DataError(
                f"{name}: found {type(dataset).__name__}, expected a PreferenceDataset. "
                "Build one: PreferenceDataset(prompts, chosen, rejected, tokenizer)."
            )
        if not dataset.is_written_by(self.tokenizer):
            raise DataError(
                f"{name}: found the tokens of another tokenizer than the trainer's. "
                "Build the dataset with the model's own tokenizer."
            )
        longest = max(map(dataset.length, range(len(dataset))))
        if longest > self._length_limit():
            raise ConfigError(
                f"{name}: found a pair of {longest} tokens, expected at most {self._length_limit()}, the least of "
                f"config.max_length={self.config.max_length} and the model's context. "
                f"Build the dataset with max_length={self._length_limit()}."
            )
        if dataset.largest_id() >= vocabulary_size(self.model):
            raise DataError(
                f"{name}: found token {dataset.largest_id()}, but the model knows {vocabulary_size(self.model)}. "
                "Build the dataset with the model's own tokenizer."
            )

    def _length_limit(self) -> int:
        """Tokens of prompt and response together, at most."""
        context = context_length(self.model)
        return self.config.max_length if context is None else min(self.config.max_length, context)


def train(
    config: DPOConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource | None = None,
    reference: str | Path | PreTrainedModel | None = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a policy on `data["train"]`, columns prompt, chosen, rejected; publish it as output_dir.

    The published weights are those with the least loss on `data["validation"]`, else the last ones. This is the common
    interface of all trainers; see PreferenceDataset and DPOTrainer for the errors.

    Args:
        config: settings.
        data: preference pairs; texts or chat messages.
        output_dir: replaced by the new model folder, in one step.
        reward: refused; preference pairs are the only signal.
        reference: causal language model or its folder; the starting policy when None.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up.
        on_metrics, on_samples: see DPOTrainer.
    """
    if reward is not None:
        raise ConfigError("Found a reward source, expected none: preference pairs are the only signal. Leave it out.")
    if "train" not in data:
        raise DataError(f"Found the splits {sorted(data)}, expected train. Name the preference pairs so.")
    tokenizer = load_tokenizer(config.model_name)
    pairs = pairs_of("train", data["train"].to_dict(), tokenizer, config)
    validation = data["validation"].to_dict() if len(data.get("validation", ())) else None
    eval_pairs = None if validation is None else pairs_of("validation", validation, tokenizer, config)
    trainer = DPOTrainer(
        config,
        tokenizer,
        reference_model=None if reference is None else cast(PreTrainedModel, load_causal_lm(reference)),
        on_metrics=on_metrics,
        on_samples=on_samples,
    )
    output_dir = Path(output_dir)
    with ExitStack() as cleanup:
        cleanup.callback(trainer.close)
        folder = cleanup.enter_context(shared_checkpoint_folder(trainer.training_client, resume_dir, output_dir))
        run = trainer.start(pairs, eval_pairs, resume_dir=folder)
        run.to_the_end()
        run.load_best()
        trainer.save_model(output_dir)
    return TrainResult(output_dir, run.best_step, run.last_metrics, run.best_metrics)


def _plan_of(config: DPOConfig, pair_count: int) -> PairPlan:
    pairs_per_step = config.batch_size * config.gradient_accumulation_steps
    total_steps = math.ceil(pair_count / pairs_per_step) * config.num_epochs
    return PairPlan(
        pair_count=pair_count,
        pairs_per_step=pairs_per_step,
        micro_batch_size=config.batch_size,
        num_epochs=config.num_epochs,
        seed=config.seed,
        learning_rate=config.learning_rate,
        min_learning_rate_ratio=config.min_learning_rate_ratio,
        warmup_steps=math.ceil(config.warmup_ratio * total_steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        logging_steps=config.logging_steps,
        eval_every=config.eval_every,
        save_every=config.save_every,
        max_non_finite_steps=config.max_non_finite_steps,
    )


def _publish(model: CausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    with publish(folder) as draft:
        save_causal_lm(model, tokenizer, draft)


def _with_adapters(model: CausalLM, config: DPOConfig) -> CausalLM:
    assert config.lora is not None
    with seeded(config.seed):
        return add_lora(cast(PreTrainedModel, model), config.lora).eval()
