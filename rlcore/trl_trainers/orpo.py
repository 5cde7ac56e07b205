"""Odds-ratio preference optimisation with TRL's experimental ORPOTrainer, on pairs tokenised by our own formatter."""

from functools import partial
from pathlib import Path

import datasets
from transformers import Trainer

from rlcore.configs import ORPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.errors import ConfigError
from rlcore.models import load_tokenizer, save_causal_lm
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.run_folder import weights_sha256
from rlcore.trl_trainers.arguments import import_trl
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
    "loss": "orpo/loss",
    "nll_loss": "orpo/nll_mean",
    "log_odds_chosen": "orpo/log_odds_ratio_mean",
    "rewards/accuracies": "orpo/accuracy",
    **OPTIMISER_NAMES,
    "eval_loss": "validation/loss",
    "eval_rewards/accuracies": "validation/accuracy",
    "eval_log_odds_chosen": "validation/log_odds_ratio_mean",
}


def train(
    config: ORPOConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource | None = None,
    reference: object = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a policy on `data["train"]`, columns prompt, chosen, rejected; publish it as output_dir.

    The loss is that of rlcore.functional.losses.orpo_loss, with one difference: its supervised part is the mean over
    the tokens of prompt and chosen response, of all pairs of a batch together. The published weights are those with the
    least loss on `data["validation"]`, else the last ones. The means of a report are as in rlcore.trl_trainers.dpo. A
    gradient that is not finite ends the run at once.

    Args:
        config: settings.
        data: preference pairs; texts or chat messages.
        output_dir: replaced by the new model folder, in one step.
        reward, reference: refused; preference pairs are the only signal.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit.
        on_metrics: sink for `orpo/*`, `validation/*` and `optim/*`.
        on_samples: gets answers to validation prompts at each evaluation.

    Raises:
        ConfigError: there is a reward source or a reference; a pair is longer than the model's context.
        DataError: a column is missing, or a row has the wrong form.
        CheckpointError: resume_dir holds another run.
        TrainingDiverged: a gradient is not finite.
    """
    if reference is not None:
        raise ConfigError("Found a reference, expected none: the odds ratio compares two responses. Leave it out.")
    tokenizer = load_tokenizer(config.model_name)
    pairs = read_pairs(data, tokenizer, config, reward)
    model = start_model(config, pairs)
    plan = plan_of(config, pairs, resume_dir)
    import_trl()
    from trl.experimental import orpo

    def make_trainer(folder: Path) -> Trainer:
        return trainer_on_pairs(
            orpo.ORPOTrainer,
            pairs,
            _rows,
            model=model,
            args=orpo.ORPOConfig(
                max_length=config.max_length,
                remove_unused_columns=False,
                **pair_arguments(config, plan, folder),
            ),
            processing_class=tokenizer,
            callbacks=[AnswerCallback(pairs.get("validation"), tokenizer, config, on_samples)],
        )

    return run(
        make_trainer,
        partial(save_causal_lm, model, tokenizer),
        plan,
        identity_of(config, pairs) | {"start": weights_sha256(model.named_parameters())},
        ReportCallback(on_metrics, renamed(METRIC_NAMES)),
        model=model,
        output_dir=Path(output_dir),
        resume_dir=resume_dir,
    )


def _rows(pairs: PreferenceDataset) -> datasets.Dataset:
    """Whole sequences; -100 marks the prompt in the labels."""
    rows = []
    for tokens in token_rows(pairs):
        row = {}
        for side in ("chosen", "rejected"):
            ids = tokens["prompt"] + tokens[side]
            row[f"{side}_input_ids"] = ids
            row[f"{side}_attention_mask"] = [1] * len(ids)
            row[f"{side}_labels"] = [-100] * len(tokens["prompt"]) + tokens[side]
        rows.append(row)
    return datasets.Dataset.from_list(rows)
