"""Peer: DPO and reward trainer of TRL 1.16, from texts to the last optimiser step."""

from typing import Any

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

from benchmarks.arms.trl_settings import settings
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import PAIR_LEARNING_RATE, columns, pairs


class DPO:
    """A new DPOTrainer with precomputed reference log-probabilities; arguments as of own_pairs.DPO."""

    def __init__(
        self,
        model: str,
        reference: str,
        rows: int,
        prompt_length: int,
        response_length: int,
        vocabulary: int,
        batch_size: int,
        accumulation: int,
        epochs: int,
        max_length: int,
    ) -> None:
        self.folder, self.reference = model, reference
        self.batch_size, self.accumulation, self.epochs, self.max_length = batch_size, accumulation, epochs, max_length
        self.texts = columns(pairs(rows, prompt_length, response_length, vocabulary))
        self.model = _causal_lm(model)
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def unit(self) -> Work:
        """All epochs."""
        trainer = self._trainer(
            self.model,
            None,
            len(self.texts["prompt"]),
            gradient_accumulation_steps=self.accumulation,
            num_train_epochs=self.epochs,
            precompute_ref_log_probs=True,
        )
        done = trainer.train()
        return Work(len(self.texts["prompt"]) * self.epochs, steps=done.global_step, loss=done.training_loss)

    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first batch against another reference."""
        trainer = self._trainer(_causal_lm(self.folder), _causal_lm(self.reference), self.batch_size)
        return {"loss/first_step": _first_loss(trainer)}

    def _trainer(self, model: Any, reference: Any, count: int, **more: Any) -> DPOTrainer:
        return DPOTrainer(
            model=model,
            ref_model=reference,
            args=DPOConfig(
                **settings(
                    per_device_train_batch_size=self.batch_size,
                    max_length=self.max_length,
                    learning_rate=PAIR_LEARNING_RATE,
                    **more,
                )
            ),
            train_dataset=_rows(self.texts, count),
            processing_class=self.tokenizer,
        )


class Reward:
    """A new RewardTrainer; arguments as of own_pairs.Reward."""

    def __init__(
        self,
        model: str,
        rows: int,
        prompt_length: int,
        response_length: int,
        vocabulary: int,
        batch_size: int,
        epochs: int,
        max_length: int,
    ) -> None:
        self.batch_size, self.epochs, self.max_length = batch_size, epochs, max_length
        self.texts = columns(pairs(rows, prompt_length, response_length, vocabulary))
        torch.manual_seed(0)
        self.model = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def unit(self) -> Work:
        """All epochs."""
        done = self._trainer(len(self.texts["prompt"])).train()
        return Work(len(self.texts["prompt"]) * self.epochs, steps=done.global_step, loss=done.training_loss)

    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first batch, and the head that scored it."""
        loss = _first_loss(self._trainer(self.batch_size))
        return {"loss/first_step": loss, "input/head": self.model.score.weight.tolist()}

    def _trainer(self, count: int) -> RewardTrainer:
        return RewardTrainer(
            model=self.model,
            args=RewardConfig(
                **settings(
                    per_device_train_batch_size=self.batch_size,
                    num_train_epochs=self.epochs,
                    max_length=self.max_length,
                    learning_rate=PAIR_LEARNING_RATE,
                )
            ),
            train_dataset=_rows(self.texts, count),
            processing_class=self.tokenizer,
        )


def _causal_lm(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _rows(texts: dict[str, list[str]], count: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({name: values[:count] for name, values in texts.items()})


def _first_loss(trainer: Any) -> float:
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))
