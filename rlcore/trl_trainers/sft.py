"""Supervised fine-tuning with TRL's SFTTrainer, on rows that our own formatter has tokenised."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase, Trainer

from rlcore.configs import SFTConfig
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.models import CausalLM, add_lora, load_causal_lm, load_tokenizer, save_causal_lm, seeded
from rlcore.pair_training import require_splits
from rlcore.processes import launched_processes
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.run_folder import rows_sha256, weights_sha256
from rlcore.scratch import build_model, train_tokenizer
from rlcore.trl_trainers.arguments import Plan, cosine_schedule, import_trl, training_arguments
from rlcore.trl_trainers.metrics import OPTIMISER_NAMES, ReportCallback, renamed
from rlcore.trl_trainers.run import run

METRIC_NAMES = {
    "loss": "sft/loss",
    "mean_token_accuracy": "sft/token_accuracy",
    "entropy": "sft/entropy_mean",
    **OPTIMISER_NAMES,
    "eval_loss": "validation/loss",
    "eval_mean_token_accuracy": "validation/token_accuracy",
}
TEXT = "text"
"""Column of rows without a prompt."""
SPLITS = ("train", "validation")

# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"logging_steps", "save_steps"}


def train(
    config: SFTConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource | None = None,
    reference: object = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Fine-tune a causal language model on demonstrations; the loss is the mean over response tokens, end included.

    The published weights are those with the least loss on `data["validation"]`, else the last ones. That loss is the
    mean over batches, so that a smaller last batch counts as much as another.

    Args:
        config: settings; model_name "scratch" builds a small model and trains its tokenizer on the demonstrations.
        data: `data["train"]` and, where there are any, `data["validation"]`, with the columns `prompt`, text or
            messages, and `response`; or with `text` alone, of which every token counts.
        output_dir: folder of the result, replaced as a whole at the end.
        reward, reference, on_samples: part of the common interface; supervised fine-tuning needs none of them.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit.
        on_metrics: sink for `sft/loss` (nats per token), `sft/token_accuracy`, `validation/*`, `optim/*`.

    Raises:
        ConfigError: there is no such model, or `lora` names no module of it.
        DataError: there is no demonstration, a column is missing, or a row has the wrong form.
        CheckpointError: resume_dir holds another run.
        TrainingDiverged: a gradient is not finite.
    """
    splits = _splits(data)
    model, tokenizer = _start(config, splits["train"])
    chat = ChatFormat(tokenizer)
    rows = {split: _tokenise(table, chat, config.max_length, split) for split, table in splits.items()}
    plan = Plan(
        total_steps=config.max_steps,
        batch_size=config.batch_size * launched_processes().count,
        logging_steps=config.logging_steps,
        save_every=None if resume_dir is None else config.save_steps,
        eval_every=config.eval_every if "validation" in rows else None,
    )
    trl = import_trl()

    def make_trainer(folder: Path) -> Trainer:
        return trl.SFTTrainer(
            model=model,
            args=trl.SFTConfig(
                adam_beta1=config.adam_beta1,
                adam_beta2=config.adam_beta2,
                max_length=config.max_length,
                dataset_kwargs={"skip_prepare_dataset": True},
                **training_arguments(config, plan, folder),
                **cosine_schedule(config.min_learning_rate_ratio, config.warmup_steps),
            ),
            train_dataset=rows["train"],
            eval_dataset=rows.get("validation"),
            processing_class=tokenizer,
        )

    return run(
        make_trainer,
        partial(save_causal_lm, model, tokenizer),
        plan,
        _identity(config, rows, model),
        ReportCallback(on_metrics, renamed(METRIC_NAMES)),
        model=model,
        output_dir=Path(output_dir),
        resume_dir=resume_dir,
    )


def _splits(data: Mapping[str, datasets.Dataset]) -> dict[str, datasets.Dataset]:
    """`data["train"]` and, where it has rows, `data["validation"]`.

    Raises:
        DataError: there is no split train or no row in it, or a column is missing.
    """
    require_splits(data)
    splits = {split: data[split] for split in SPLITS if len(data.get(split, ()))}
    if "train" not in splits:
        raise DataError("Found 0 demonstrations in the split train, expected at least one. Check the data.")
    for split, table in splits.items():
        if TEXT not in table.column_names and not {"prompt", "response"} <= set(table.column_names):
            raise DataError(
                f"Split {split}: found the columns {', '.join(table.column_names)}, expected prompt and response, or "
                "text. Name them so."
            )
    return splits


def _start(config: SFTConfig, rows: datasets.Dataset) -> tuple[CausalLM, PreTrainedTokenizerBase]:
    if config.model_name != "scratch":
        model, tokenizer = load_causal_lm(config.model_name), load_tokenizer(config.model_name)
        if config.lora is not None:
            with seeded(config.seed):
                model = add_lora(model, config.lora)
        return model, tokenizer
    texts = [row[TEXT] if TEXT in row else f"{row['prompt']}\n{row['response']}" for row in rows]
    tokenizer = train_tokenizer(texts, config.scratch.vocab_size)
    return build_model(config.scratch, tokenizer, config.seed), tokenizer


def _identity(config: SFTConfig, rows: Mapping[str, datasets.Dataset], model: CausalLM) -> dict[str, Any]:
    """What must be the same for a checkpoint to belong to a run."""
    return {
        "config": config.model_dump(mode="json", exclude=_FREE_SETTINGS),
        "demonstrations": {split: rows_sha256(table) for split, table in rows.items()},
        "start": weights_sha256(model.named_parameters()),
    }


def _tokenise(rows: datasets.Dataset, chat: ChatFormat, max_length: int, split: str) -> datasets.Dataset:
    """Rows of `input_ids` and `labels`; -100 marks the prompt, which is context and not a target."""
    encoded: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for index, row in enumerate(rows):
        try:
            prompt_ids, response_ids = _ids_of(row, chat, max_length)
        except DataError as error:
            raise DataError(f"Split {split}, row {index}: {error}") from error
        encoded["input_ids"].append(prompt_ids + response_ids)
        encoded["labels"].append([-100] * len(prompt_ids) + response_ids)
    return datasets.Dataset.from_dict(encoded)


def _ids_of(row: Mapping[str, Any], chat: ChatFormat, max_length: int) -> tuple[list[int], list[int]]:
    """Ids of the context and of the targets, together at most max_length. One end token ends targets that fit."""
    if TEXT not in row:
        return chat.encode_pair(row["prompt"], row["response"], max_length=max_length)
    ids = chat.encode_text(row[TEXT])
    while ids and ids[-1] == chat.end_id:
        ids.pop()
    return [], [*ids, chat.end_id][:max_length]
