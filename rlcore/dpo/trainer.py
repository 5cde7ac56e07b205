"""The preference trainer: a policy, its frozen reference, and runs over preference pairs."""

import math
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.checkpoint import publish
from rlcore.configs import DPOConfig
from rlcore.dpo.answers import hand_over_answers
from rlcore.dpo.dataset import PreferenceDataset, pairs_of
from rlcore.dpo.loss import ReferencedPairs
from rlcore.dpo.reference import kept_on_disk, measure_reference
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, in_first_process, require_agreement, training_device
from rlcore.models import (
    CausalLM,
    add_lora,
    frozen_copy,
    frozen_weights,
    load_causal_lm,
    load_tokenizer,
    require_arguments,
    require_same_vocabulary,
    require_separable,
    require_trainable,
    save_causal_lm,
    seeded,
)
from rlcore.pair_training import (
    PairPlan,
    PairRun,
    by_length,
    evaluate_pairs,
    preference_splits,
    read_each,
    shared_checkpoint_folder,
)
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
        ConfigError: a device that is not there; a reference with another vocabulary or with weights of the model, or
            one beside reference_free; a model whose output layer cannot be called apart, that is frozen or trained in
            less than float32, or that holds NaN; an argument of another class.
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
        require_arguments(config, DPOConfig, tokenizer, on_metrics=on_metrics, on_samples=on_samples)
        if config.reference_free and reference_model is not None:
            raise ConfigError("Found a reference_model with reference_free=True. Leave one of them out.")
        self.config = config
        self.on_metrics, self.on_samples = on_metrics, on_samples
        device = training_device(config.device)
        self.tokenizer = tokenizer if tokenizer is not None else load_tokenizer(config.model_name)
        self.chat = ChatFormat(self.tokenizer)
        self.model = load_causal_lm(model if model is not None else config.model_name)
        require_separable(self.model)
        if reference_model is not None:
            reference_model = cast(PreTrainedModel, load_causal_lm(reference_model))
            require_same_vocabulary(self.model, reference_model)
        if config.lora is not None:
            with seeded(config.seed):
                self.model = add_lora(cast(PreTrainedModel, self.model), config.lora).eval()
        elif reference_model is None and not config.reference_free:
            reference_model = frozen_copy(cast(PreTrainedModel, self.model))
        require_trainable(self.model, reference_model)
        self.reference_model = reference_model
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
        # Before the reference reads the pairs, of which each process takes its share.
        settings = self.config.model_dump(mode="json", exclude={"device"})
        require_agreement(self.training_client, {"config": settings, "pairs": dataset.sha256()})
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
        return {name: measures[metric] for name, metric in EVALUATION.items()}

    def save_model(self, folder: Path) -> None:
        """Write the policy and its tokenizer as an ordinary model folder, adapters merged, in one step."""
        in_first_process(self.training_client, partial(_publish, self.model, self.tokenizer, folder))

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
        """Hash of the weights that training changes, before the first run that keeps checkpoints."""
        return weights_sha256(trained_weights(self.model).items())

    def _answer(self, dataset: PreferenceDataset | None, step: int) -> None:
        hand_over_answers(self.training_client, self.chat, dataset, self.config, step, self.on_samples)

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
        dataset.require_readable(name, self.model, self.config.max_length)


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
    splits = preference_splits(data, reward)
    tokenizer = load_tokenizer(config.model_name)
    pairs = read_each(splits, lambda columns: pairs_of(columns, tokenizer, config))
    trainer = DPOTrainer(
        config,
        tokenizer,
        reference_model=None if reference is None else cast(PreTrainedModel, load_causal_lm(reference)),
        on_metrics=on_metrics,
        on_samples=on_samples,
    )
    output_dir = Path(output_dir)
    with closing(trainer), shared_checkpoint_folder(trainer.training_client, resume_dir, output_dir) as folder:
        run = trainer.start(pairs["train"], pairs.get("validation"), resume_dir=folder)
        run.to_the_end()
        run.load_best()
        trainer.save_model(output_dir)
    return TrainResult(output_dir, run.best_step, run.last_metrics, run.best_metrics)


def _plan_of(config: DPOConfig, pair_count: int) -> PairPlan:
    plan = PairPlan(
        pair_count=pair_count,
        pairs_per_step=config.batch_size * config.gradient_accumulation_steps,
        micro_batch_size=config.batch_size,
        num_epochs=config.num_epochs,
        seed=config.seed,
        learning_rate=config.learning_rate,
        min_learning_rate_ratio=config.min_learning_rate_ratio,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        logging_steps=config.logging_steps,
        eval_every=config.eval_every,
        save_every=config.save_every,
        max_non_finite_steps=config.max_non_finite_steps,
    )
    return replace(plan, warmup_steps=math.ceil(config.warmup_ratio * plan.total_steps))


def _publish(model: CausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    with publish(folder) as draft:
        save_causal_lm(model, tokenizer, draft)
