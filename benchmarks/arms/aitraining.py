"""Peer: `autotrain.trainers.rl` of aitraining 0.0.54, in an environment of its own, on the roads that it can go."""

from typing import Any

import torch
from autotrain.trainers import rl
from autotrain.trainers.rl.dpo import PreferenceDataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.arms.inputs import tables
from benchmarks.arms.pieces import AdvantagesOfTables, QueuedSteps
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import (
    END_ID,
    GAMMA,
    LAM,
    PAIR_LEARNING_RATE,
    PARITY_TOKENS,
    columns,
    pairs,
    prompts,
    text,
)


class Responses:
    """`PPOTrainer.generate_responses`; arguments as of own_sampling.Responses."""

    def __init__(self, model: str, rows: int, prompt_length: int, vocabulary: int, new_tokens: int) -> None:
        self.trainer = _ppo_trainer(model, new_tokens)
        self.prompts = [text(row) for row in prompts(rows, prompt_length, vocabulary)]

    def unit(self) -> Work:
        """A response to each prompt."""
        responses, _ = self.trainer.generate_responses(self.prompts)
        return Work(sum(len(response.split()) for response in responses))

    def facts(self, other: Facts | None) -> Facts:
        """Most likely words; it always draws, so its model is asked without it."""
        inputs = self.trainer.tokenizer(self.prompts, padding=True, return_tensors="pt")
        ids = self.trainer.model.base_model.generate(
            **inputs, max_new_tokens=PARITY_TOKENS, do_sample=False, eos_token_id=END_ID
        )
        return {"ids/greedy": ids[:, inputs.input_ids.shape[1] :].tolist()}


class DPO:
    """Its loss over a data loader, one optimiser step for each batch: its own `train` always raises.

    Arguments as of own_pairs.DPO. The loss counts padding as tokens and no end token follows a response, so parity is
    that of pairs which are cut at max_length on both sides.
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
        self.reference, self.epochs = reference, epochs
        self.rows = pairs(rows, prompt_length, response_length, vocabulary)
        self.config = rl.DPOConfig(
            model_name=model,
            learning_rate=PAIR_LEARNING_RATE,
            batch_size=batch_size,
            max_length=max_length,
            max_prompt_length=prompt_length,
            device="cpu",
        )
        self.trainer = rl.DPOTrainer(self.config, AutoTokenizer.from_pretrained(model, padding_side="right"))

    def unit(self) -> Work:
        """All epochs."""
        steps, loss = 0, torch.zeros(())
        for _ in range(self.epochs):
            for batch in self._batches(self.rows):
                loss, _metrics = self.trainer.compute_dpo_loss(batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.trainer.model.parameters(), self.config.max_grad_norm)
                self.trainer.optimizer.step()
                self.trainer.optimizer.zero_grad()
                steps += 1
        return Work(len(self.rows) * self.epochs, steps=steps, loss=loss.item())

    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first batch against another reference."""
        kept, self.trainer.reference_model = self.trainer.reference_model, _causal_lm(self.reference)
        with torch.no_grad():
            loss, _ = self.trainer.compute_dpo_loss(next(iter(self._batches(self.rows))))
        self.trainer.reference_model = kept
        return {"loss/first_step": float(loss)}

    def _batches(self, rows: Any) -> DataLoader[Any]:
        texts, config = columns(rows), self.config
        dataset = PreferenceDataset(
            texts["prompt"],
            texts["chosen"],
            texts["rejected"],
            self.trainer.tokenizer,
            config.max_length,
            config.max_prompt_length,
        )
        return DataLoader(dataset, batch_size=config.batch_size)


class Reward:
    """`RewardModelTrainer.train_on_preferences` on whole texts; arguments as of own_pairs.Reward."""

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
        texts = columns(pairs(rows, prompt_length, response_length, vocabulary))
        self.chosen, self.rejected = (
            [prompt + response for prompt, response in zip(texts["prompt"], texts[side], strict=True)]
            for side in ("chosen", "rejected")
        )
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right", model_max_length=max_length)
        config = rl.RewardModelConfig(model_name=model, learning_rate=PAIR_LEARNING_RATE, dropout_prob=0.0)
        self.trainer = rl.RewardModelTrainer(rl.RewardModel(config), self.tokenizer, config, device="cpu")

    def unit(self) -> Work:
        """All epochs."""
        self.trainer.train_on_preferences(self.chosen, self.rejected, self.epochs, self.batch_size)
        count = len(self.chosen) * self.epochs
        return Work(count, steps=-(-len(self.chosen) // self.batch_size) * self.epochs)

    @torch.no_grad()
    def facts(self, other: Facts | None) -> Facts:
        """The loss of the first batch, and the scores it is made of: its head is another function than ours."""
        model = self.trainer.model.eval()
        chosen, rejected = (
            self.tokenizer(texts[: self.batch_size], padding=True, return_tensors="pt")
            for texts in (self.chosen, self.rejected)
        )
        loss = model.compute_preference_loss(
            chosen.input_ids, chosen.attention_mask, rejected.input_ids, rejected.attention_mask
        )
        scores = {
            f"input/{side}": model(rows.input_ids, rows.attention_mask, return_dict=False).flatten().tolist()
            for side, rows in (("chosen", chosen), ("rejected", rejected))
        }
        return {"loss/first_step": float(loss), **scores}


class Advantages(AdvantagesOfTables):
    """`PPOTrainer.compute_advantages`; arguments as of own_pieces.Advantages, and a model that it has to load."""

    def __init__(self, model: str, rows: int, steps: int, repeats: int) -> None:
        super().__init__(tables(rows, steps), repeats)
        self.trainer = _ppo_trainer(model, 1)

    def advantages(self, rewards: torch.Tensor, values: torch.Tensor) -> Any:
        """See AdvantagesOfTables."""
        return self.trainer.compute_advantages(rewards, values, torch.zeros_like(rewards))[0]


class PipelineStep(QueuedSteps):
    """ForwardBackwardPipeline; arguments as of own_pieces.PipelineStep."""

    def __init__(self, model: str, rows: int, length: int, vocabulary: int, repeats: int) -> None:
        loaded = _causal_lm(model)
        pipeline = rl.ForwardBackwardPipeline(loaded, device="cpu")
        super().__init__(loaded, pipeline, rows, length, vocabulary, repeats)

    def facts(self, other: Facts | None) -> Facts:
        """The first loss."""
        return {"loss/first_step": self.step()}


def _causal_lm(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _ppo_trainer(model: str, new_tokens: int) -> Any:
    config = rl.PPOConfig(
        model_name=model, max_new_tokens=new_tokens, temperature=1.0, top_p=1.0, gamma=GAMMA, lam=LAM, device="cpu"
    )
    return rl.PPOTrainer(config, AutoTokenizer.from_pretrained(model), reward_fn=lambda prompts, responses: [0.0])
