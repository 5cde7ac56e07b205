"""Direct preference optimisation with TRL's DPOTrainer, on pairs that our own formatter has tokenised."""

from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedModel, Trainer

from rlcore.configs import DPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.models import CausalLM, frozen_copy, load_causal_lm, load_tokenizer, require_same_vocabulary, save_causal_lm
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.run_folder import weights_sha256
from rlcore.trl_trainers.arguments import import_trl, refuse_settings
from rlcore.trl_trainers.metrics import OPTIMISER_NAMES, ReportCallback, renamed
from rlcore.trl_trainers.run import run
from rlcore.trl_trainers.token_pairs import (
    AnswerCallback,
    identity_of,
    pair_arguments,
    plan_of,
    read_pairs,
    start_model,
    token_rows,
    trainer_on_pairs,
)

METRIC_NAMES = {
    "loss": "dpo/loss",
    "rewards/accuracies": "dpo/accuracy",
    "rewards/margins": "dpo/margin_mean",
    "rewards/chosen": "dpo/chosen_reward_mean",
    "rewards/rejected": "dpo/rejected_reward_mean",
    **OPTIMISER_NAMES,
    "eval_loss": "validation/loss",
    "eval_rewards/accuracies": "validation/accuracy",
    "eval_rewards/margins": "validation/margin_mean",
}
UNSUPPORTED = ("reference_free", "max_non_finite_steps")


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

    The published weights are those with the least loss on `data["validation"]`, else the last ones. The means of a
    report are over batches, so that a smaller last batch counts as much as another; several processes repeat validation
    rows until all have as many. A gradient that is not finite ends the run at once.

    Args:
        config: settings. Those of UNSUPPORTED are refused unless they are at their defaults.
        data: preference pairs; texts or chat messages.
        output_dir: replaced by the new model folder, in one step.
        reward: refused; preference pairs are the only signal.
        reference: causal language model or its folder; the starting policy when None.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit.
        on_metrics: sink for `dpo/*`, `validation/*` and `optim/*`.
        on_samples: gets answers to validation prompts at each evaluation.

    Raises:
        ConfigError: a setting has no counterpart; the reference has another vocabulary; a pair is longer than the
            model's context.
        DataError: a column is missing, or a row has the wrong form.
        CheckpointError: resume_dir holds another run.
        TrainingDiverged: a gradient is not finite.
    """
    refuse_settings(config, UNSUPPORTED, "DPOTrainer")
    tokenizer = load_tokenizer(config.model_name)
    pairs = read_pairs(data, tokenizer, config, reward)
    model = start_model(config, pairs)
    reference_model = _reference(model, config, reference)
    plan = plan_of(config, pairs, resume_dir)
    trl = import_trl()

    def make_trainer(folder: Path) -> Trainer:
        return trainer_on_pairs(
            trl.DPOTrainer,
            pairs,
            _rows,
            model=model,
            ref_model=reference_model,
            args=trl.DPOConfig(
                max_length=None, **_smoothed(config.label_smoothing), **pair_arguments(config, plan, folder)
            ),
            processing_class=tokenizer,
            callbacks=[AnswerCallback(pairs.get("validation"), tokenizer, config, on_samples)],
        )

    weights = {
        "start": weights_sha256(model.named_parameters()),
        "reference": None if reference_model is None else weights_sha256(reference_model.named_parameters()),
    }
    return run(
        make_trainer,
        partial(save_causal_lm, model, tokenizer),
        plan,
        identity_of(config, pairs) | weights,
        ReportCallback(on_metrics, renamed(METRIC_NAMES)),
        model=model,
        output_dir=Path(output_dir),
        resume_dir=resume_dir,
    )


def _smoothed(label_smoothing: float) -> dict[str, Any]:
    """Keywords of the loss (1 - s) A + s B, where A = -log sigmoid(margin) and B = -log sigmoid(-margin).

    TRL's sigmoid loss is A, whatever its label_smoothing says. Its robust loss at 1/4 is (3 A - B) / 2, so that
    (1 + 2 s) A - 2 s (3 A - B) / 2 is ours.
    """
    return {
        "loss_type": ["sigmoid", "robust"],
        "loss_weights": [1 + 2 * label_smoothing, -2 * label_smoothing],
        "label_smoothing": 0.25,
    }


def _reference(model: CausalLM, config: DPOConfig, reference: str | Path | PreTrainedModel | None) -> CausalLM | None:
    """The frozen reference; None where the policy has adapters, a copy of which TRL takes for it."""
    if reference is not None:
        loaded = load_causal_lm(reference)
        require_same_vocabulary(model, loaded)
        return frozen_copy(loaded)
    return frozen_copy(model) if config.lora is None else None


def _rows(pairs: PreferenceDataset) -> datasets.Dataset:
    return datasets.Dataset.from_list([{f"{name}_ids": ids for name, ids in row.items()} for row in token_rows(pairs)])
