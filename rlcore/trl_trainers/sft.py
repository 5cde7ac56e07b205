"""Supervised fine-tuning with TRL's SFTTrainer, on rows that our own formatter has tokenised."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback

from rlcore.checkpoint import publish
from rlcore.configs import SFTConfig
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.models import CausalLM, load_causal_lm, load_tokenizer, save_causal_lm
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.run_folder import checkpoint_folder, require_same_run, rows_sha256, weights_sha256
from rlcore.scratch import build_model, train_tokenizer
from rlcore.trl_trainers.metrics import ReportCallback

METRIC_NAMES = {
    "loss": "sft/loss",
    "mean_token_accuracy": "sft/token_accuracy",
    "entropy": "sft/entropy_mean",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/learning_rate",
}
COMPLETE, IDENTITY = "complete", "identity.json"
# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"logging_steps", "save_steps"}


class _MarkComplete(TrainerCallback):
    """Mark a checkpoint folder once all its files are written, so that a killed save is never resumed from."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()


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

    Args:
        config: settings; model_name "scratch" builds a small model and trains its tokenizer on the demonstrations.
        data: `data["train"]` with string columns `prompt` and `response`.
        output_dir: folder of the result, replaced as a whole at the end.
        reward, reference, on_samples: part of the common interface; supervised fine-tuning needs none of them.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit.
        on_metrics: sink for `sft/loss` (nats per token), `sft/token_accuracy`, `optim/*`.

    Raises:
        DataError: no row has a response token within max_length.
        CheckpointError: resume_dir holds another run.
    """
    model, tokenizer = _start(config, data["train"])
    rows = _tokenise(data["train"], ChatFormat(tokenizer), config.max_length)
    on_metrics(0, {"progress/total_steps": float(config.max_steps)})
    report = ReportCallback(on_metrics, METRIC_NAMES)
    if config.max_steps:
        with checkpoint_folder(resume_dir, output_dir) as checkpoints:
            _claim(checkpoints, _identity(config, model, rows))
            _fit(config, model, tokenizer, rows, checkpoints, report)
    with publish(output_dir) as folder:
        save_causal_lm(model, tokenizer, folder)
    return TrainResult(output_dir, config.max_steps, report.last, report.last)


def _start(config: SFTConfig, rows: datasets.Dataset) -> tuple[CausalLM, PreTrainedTokenizerBase]:
    if config.model_name != "scratch":
        return load_causal_lm(config.model_name), load_tokenizer(config.model_name)
    texts = [f"{row['prompt']}\n{row['response']}" for row in rows]
    tokenizer = train_tokenizer(texts, config.scratch.vocab_size)
    return build_model(config.scratch, tokenizer, config.seed), tokenizer


def _tokenise(rows: datasets.Dataset, chat: ChatFormat, max_length: int) -> datasets.Dataset:
    """Rows of `input_ids` and `labels`; -100 marks the prompt, which is context and not a target."""
    encoded: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for row in rows:
        prompt_ids, response_ids = chat.encode_pair(row["prompt"], row["response"], max_length=max_length)
        encoded["input_ids"].append(prompt_ids + response_ids)
        encoded["labels"].append([-100] * len(prompt_ids) + response_ids)
    if not encoded["input_ids"]:
        raise DataError("Found 0 demonstrations, expected at least one. Check the data set's train split.")
    return datasets.Dataset.from_dict(encoded)


def _fit(
    config: SFTConfig,
    model: CausalLM,
    tokenizer: PreTrainedTokenizerBase,
    rows: datasets.Dataset,
    checkpoints: Path,
    report: ReportCallback,
) -> None:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import trl

    on_gpu = torch.cuda.is_available()
    arguments = trl.SFTConfig(
        output_dir=str(checkpoints),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": config.min_learning_rate_ratio},
        warmup_steps=config.warmup_steps,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        max_length=config.max_length,
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=config.logging_steps,
        save_steps=config.save_steps,
        save_total_limit=2,
        seed=config.seed,
        bf16=on_gpu and torch.cuda.is_bf16_supported(),
        use_cpu=not on_gpu,
        activation_checkpointing=False,
        dataloader_pin_memory=on_gpu,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[report, _MarkComplete()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_newest_complete(checkpoints))


def _identity(config: SFTConfig, model: CausalLM, rows: datasets.Dataset) -> dict[str, Any]:
    """What must be the same for a checkpoint to belong to a run."""
    return {
        "config": config.model_dump(mode="json", exclude=_FREE_SETTINGS),
        "demonstrations": rows_sha256(rows),
        "start": weights_sha256(model.named_parameters()),
    }


def _claim(checkpoints: Path, identity: Mapping[str, Any]) -> None:
    """Refuse the checkpoints of another run; without any, write down whose the folder is."""
    path = checkpoints / IDENTITY
    if _newest_complete(checkpoints) is not None:
        require_same_run(path, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}, identity)
        return
    checkpoints.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(identity, indent=1), encoding="utf-8")
    draft.replace(path)


def _newest_complete(checkpoints: Path) -> str | None:
    """The newest checkpoint that was written to its end; half-written ones are removed."""
    newest: tuple[int, Path] | None = None
    for folder in checkpoints.glob("checkpoint-*"):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder)
            continue
        newest = max(newest or (-1, folder), (int(folder.name.rsplit("-", 1)[1]), folder))
    return str(newest[1]) if newest else None
