"""A reward model with TRL's RewardTrainer: a classification folder with one label, on pairs that we have tokenised."""

import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import datasets
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    Trainer,
)

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from rlcore.models import CausalLM, load_tokenizer, save_causal_lm, seeded, without_wrapper
from rlcore.pair_training import preference_splits, read_each
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.reward.body import ForwardArguments, add_adapters, load_complete
from rlcore.reward.pairs import TokenPairs, encode_pairs
from rlcore.run_folder import weights_sha256
from rlcore.trl_trainers.arguments import Plan, cosine_schedule, import_trl, refuse_settings, training_arguments
from rlcore.trl_trainers.metrics import OPTIMISER_NAMES, ReportCallback, renamed
from rlcore.trl_trainers.run import run

METRIC_NAMES = {
    "loss": "reward_model/loss",
    "accuracy": "reward_model/accuracy",
    "margin": "reward_model/margin_mean",
    **OPTIMISER_NAMES,
    "eval_loss": "validation/loss",
    "eval_accuracy": "validation/accuracy",
    "eval_margin": "validation/margin_mean",
}
UNSUPPORTED = ("num_labels", "temperature", "reference_samples", "reference_max_new_tokens")
# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "save_steps", "logging_steps"}


def train(
    config: RewardModelConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource | None = None,
    reference: object = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a reward model on `data["train"]`, columns prompt, chosen, rejected; publish it as output_dir.

    The result is an ordinary folder of a sequence classifier with one label, which `rlcore.reward.ClassifierSource`
    reads. The published weights are those of the epoch with the least loss on `data["validation"]`, else the last ones.
    The means of a report are over batches; several processes repeat validation rows until all have as many. A gradient
    that is not finite ends the run at once.

    Args:
        config: settings. Those of UNSUPPORTED are refused unless they are at their defaults. There is no dropout in
            front of the head of a decoder, so dropout_prob may only be left alone or be 0.
        data: preference pairs.
        output_dir: replaced by the new model folder, in one step.
        reward: refused; preference pairs are the only signal.
        reference, on_samples: part of the common interface; without reference_samples there is nothing to sample.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit.
        on_metrics: sink for `reward_model/*`, `validation/*` and `optim/*`.

    Raises:
        ConfigError: a setting has no counterpart, or pooling_strategy is not what the model does.
        DataError: a split or column is missing, or a row has the wrong form.
        CheckpointError: weights are missing or damaged, or resume_dir holds another run.
        TrainingDiverged: a gradient is not finite.
    """
    refuse_settings(config, UNSUPPORTED, "RewardTrainer")
    if config.dropout_prob:
        refuse_settings(config, ("dropout_prob",), "RewardTrainer")
    splits = preference_splits(data, reward)
    tokenizer = load_tokenizer(config.model_name)
    model = _start(config)
    chat, max_length = ChatFormat(tokenizer), _length_limit(model, config)
    pairs = read_each(splits, lambda columns: encode_pairs(chat, columns, max_length))
    plan = _plan_of(config, pairs, resume_dir)
    trl = import_trl()

    def make_trainer(folder: Path) -> Trainer:
        return trl.RewardTrainer(
            model=model,
            args=trl.RewardConfig(
                center_rewards_coefficient=config.center_rewards_coef or None,
                max_length=None,
                disable_dropout=False,
                **training_arguments(config, plan, folder, config.device),
                **cosine_schedule(0.0, config.warmup_steps),
            ),
            train_dataset=_rows(pairs["train"]),
            eval_dataset=_rows(pairs["validation"]) if "validation" in pairs else None,
            processing_class=tokenizer,
        )

    return run(
        make_trainer,
        partial(save_causal_lm, model, tokenizer),
        plan,
        _identity(config, pairs, model),
        ReportCallback(on_metrics, renamed(METRIC_NAMES)),
        model=model,
        output_dir=Path(output_dir),
        resume_dir=resume_dir,
    )


class _OneLabel:
    """AutoModelForSequenceClassification with one label; what lies on top of decoder or encoder may be new."""

    @staticmethod
    def from_pretrained(name: str | Path, **settings: Any) -> Any:
        model, report = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, **settings)
        body = f"{model.base_model_prefix}."
        report["missing_keys"] = {
            key for key in report["missing_keys"] if key.startswith(body) and not key.startswith(f"{body}pooler.")
        }
        return model, report


def _start(config: RewardModelConfig) -> CausalLM:
    """The model before training. A head that the folder does not have is drawn from the seed."""
    with seeded(config.seed):
        model = load_complete(_OneLabel, config.model_name)
        pooling = "cls" if type(model.config) in MODEL_FOR_MASKED_LM_MAPPING else "last"
        if config.pooling_strategy != pooling:
            raise ConfigError(
                f"pooling_strategy={config.pooling_strategy!r}: {type(model).__name__} pools by {pooling!r}, and TRL's "
                f"RewardTrainer takes it as it is. Set {pooling!r}, or take the backend 'own'."
            )
        return add_adapters(model, config, "SEQ_CLS") if config.use_lora else model


def _length_limit(model: CausalLM, config: RewardModelConfig) -> int:
    """Tokens that a row may have."""
    limit = ForwardArguments(cast(PreTrainedModel, without_wrapper(model).base_model)).max_length
    return min(config.max_length, limit or config.max_length)


def _plan_of(config: RewardModelConfig, pairs: dict[str, TokenPairs], resume_dir: Path | None) -> Plan:
    steps_per_epoch = math.ceil(len(pairs["train"]) / (config.batch_size * config.gradient_accumulation_steps))
    return Plan(
        total_steps=steps_per_epoch * config.num_epochs,
        batch_size=config.batch_size,
        logging_steps=config.logging_steps,
        save_every=None if resume_dir is None else config.save_steps,
        eval_every=steps_per_epoch if "validation" in pairs else None,
    )


def _identity(config: RewardModelConfig, pairs: dict[str, TokenPairs], model: CausalLM) -> dict[str, Any]:
    """What must be the same for a checkpoint to belong to a run."""
    return {
        "config": config.model_dump(mode="json", exclude=_FREE_SETTINGS),
        "pairs": {split: rows.sha256() for split, rows in pairs.items()},
        "start": weights_sha256(model.named_parameters()),
    }


def _rows(pairs: TokenPairs) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"chosen_ids": pairs.chosen, "rejected_ids": pairs.rejected})
