"""Ours: DPO and reward models, from texts to the last optimiser step."""

import time
from contextlib import closing

import torch

from benchmarks.protocol import Facts, Work
from benchmarks.workloads import PAIR_LEARNING_RATE, columns, pairs
from rlcore import DPOConfig, DPOTrainer, PreferenceDataset, RewardModel, RewardModelConfig, RewardModelTrainer
from rlcore.functional.losses import bradley_terry_loss
from rlcore.models import load_causal_lm, load_tokenizer


class DPO:
    """A new DPOTrainer on a loaded model: tokenising, reference and training.

    Args:
        model, reference: folders; the reference is for the parity of the loss, which would be ln 2 without another one.
        rows, prompt_length, response_length, vocabulary: the pairs.
        batch_size, accumulation, epochs, max_length: of the trainer.
    """

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
        self.reference = reference
        self.config = DPOConfig(
            model_name=model,
            learning_rate=PAIR_LEARNING_RATE,
            batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            num_epochs=epochs,
            max_length=max_length,
            max_prompt_length=prompt_length,
            logging_steps=1000,
            device="cpu",
        )
        self.texts = columns(pairs(rows, prompt_length, response_length, vocabulary))
        self.model = load_causal_lm(model)
        self.tokenizer = load_tokenizer(model)

    def unit(self) -> Work:
        """All epochs."""
        started = time.process_time()
        dataset = self._dataset(len(self.texts["prompt"]))
        tokenised = time.process_time()
        with closing(DPOTrainer(self.config, self.tokenizer, model=self.model)) as trainer:
            history = trainer.train(dataset)
        return Work(
            count=len(dataset) * self.config.num_epochs,
            steps=len(history["loss"]),
            loss=history["loss"][-1],
            parts={"tokenise_s": tokenised - started},
        )

    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first step against another reference."""
        dataset = self._dataset(self.config.batch_size)
        config = self.config.model_copy(update={"gradient_accumulation_steps": 1, "num_epochs": 1})
        reference = load_causal_lm(self.reference)
        with closing(DPOTrainer(config, model=load_causal_lm(config.model_name), reference_model=reference)) as trainer:
            return {"loss/first_step": trainer.train(dataset)["loss"][0]}

    def _dataset(self, count: int) -> PreferenceDataset:
        prompts, chosen, rejected = (self.texts[name][:count] for name in ("prompt", "chosen", "rejected"))
        config = self.config
        return PreferenceDataset(prompts, chosen, rejected, self.tokenizer, config.max_length, config.max_prompt_length)


class Reward:
    """A new RewardModelTrainer on a loaded model: tokenising and training.

    Args:
        model: folder.
        rows, prompt_length, response_length, vocabulary: the pairs.
        batch_size, epochs, max_length: of the trainer.
    """

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
        self.batch_size, self.epochs = batch_size, epochs
        self.config = RewardModelConfig(
            model_name=model,
            learning_rate=PAIR_LEARNING_RATE,
            dropout_prob=0.0,
            warmup_steps=0,
            max_length=max_length,
            logging_steps=1000,
            device="cpu",
        )
        self.texts = columns(pairs(rows, prompt_length, response_length, vocabulary))
        self.model, self.tokenizer = RewardModel(self.config), load_tokenizer(model)

    def unit(self) -> Work:
        """All epochs."""
        history = self._train(len(self.texts["prompt"]), self.epochs)
        rows = len(self.texts["prompt"]) * self.epochs
        return Work(rows, steps=len(history["loss"]), loss=history["loss"][-1])

    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first step with the other side's head, or of its scores where that is another function."""
        if other is None:
            return {}
        if "input/head" not in other:
            chosen, rejected = (torch.tensor(other[f"input/{side}"]) for side in ("chosen", "rejected"))
            return {"loss/first_step": bradley_terry_loss(chosen, rejected).item()}
        with torch.no_grad():
            self.model.head.weight.copy_(torch.tensor(other["input/head"]))
        return {"loss/first_step": self._train(self.batch_size, 1)["loss"][0]}

    def _train(self, count: int, epochs: int) -> dict[str, list[float]]:
        prompts, chosen, rejected = (self.texts[name][:count] for name in ("prompt", "chosen", "rejected"))
        with closing(RewardModelTrainer(self.model, self.tokenizer, self.config, device="cpu")) as trainer:
            return trainer.train_on_preferences(chosen, rejected, epochs, self.batch_size, prompts=prompts)
