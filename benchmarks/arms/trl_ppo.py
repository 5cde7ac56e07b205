"""Peer: PPOTrainer of TRL 1.12, the last release that has one. Runs in an environment of its own.

Its update is written out inside of its loop, so no loss can be asked for: parity is that of the log-probabilities.
"""

from typing import Any

import datasets
import peft
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer
from trl.experimental.ppo.ppo_trainer import forward

from benchmarks.arms.gate import Gate
from benchmarks.arms.trl_settings import ENDLESS, settings
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import KL_COEFFICIENT, LORA_ALPHA, LORA_RANK, PAD_ID, POLICY_LEARNING_RATE, pairs, prompts


class PPO:
    """One update: sample a batch, judge it with a reward model, learn; a value model of its own.

    Its mini-batches add no optimiser steps, so that an update has one for each epoch, whatever num_mini_batches says.

    Args:
        model: folder, of policy, value and reward model alike.
        rows, prompt_length, vocabulary, new_tokens: of a rollout.
        mini_batch_size, epochs: rows of a backward pass, passes.
        lora: adapters of rank 16.
    """

    def __init__(
        self,
        model: str,
        rows: int,
        prompt_length: int,
        vocabulary: int,
        new_tokens: int,
        mini_batch_size: int,
        epochs: int,
        lora: bool = False,
    ) -> None:
        self.gate, self.count, self.epochs = Gate(), 0, epochs
        self.parity_rows = pairs(4, prompt_length, new_tokens, vocabulary)
        torch.manual_seed(0)
        self.policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        value, reward = (_scorer(model) for _ in range(2))
        reward.score.register_forward_pre_hook(lambda _, states: self._note(states[0], prompt_length))
        asked = prompts(rows, prompt_length, vocabulary)
        self.trainer = PPOTrainer(
            args=PPOConfig(
                **settings(
                    per_device_train_batch_size=mini_batch_size,
                    gradient_accumulation_steps=rows // mini_batch_size,
                    num_mini_batches=1,
                    num_ppo_epochs=epochs,
                    total_episodes=rows * ENDLESS,
                    response_length=new_tokens,
                    num_sample_generations=0,
                    temperature=1.0,
                    kl_coef=KL_COEFFICIENT,
                    learning_rate=POLICY_LEARNING_RATE,
                )
            ),
            processing_class=AutoTokenizer.from_pretrained(model),
            model=self.policy,
            ref_model=None if lora else AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            reward_model=reward,
            value_model=value,
            train_dataset=datasets.Dataset.from_dict({"input_ids": asked}),
            callbacks=[self.gate],
            peft_config=peft.LoraConfig(
                r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
            )
            if lora
            else None,
        )

    def unit(self) -> Work:
        """One update."""
        self.count = 0
        self.gate.step(self.trainer.train)
        return Work(self.count, steps=self.epochs)

    @torch.no_grad()
    def facts(self, other: Facts | None) -> Facts:
        """What the policy says of some rows, as its loop asks it."""
        rows = [[prompt, chosen] for prompt, chosen, _ in self.parity_rows]
        width = max(len(response) for _, response in rows)
        responses = torch.tensor([response + [PAD_ID] * (width - len(response)) for _, response in rows])
        ids = torch.cat([torch.tensor([prompt for prompt, _ in rows]), responses], dim=1)
        logits = forward(self.trainer.model.policy, ids, PAD_ID).logits[:, -width - 1 : -1]
        logprobs = logits.log_softmax(dim=-1).gather(2, responses[..., None])[..., 0]
        return {"input/rows": rows, "logprobs/policy": logprobs.where(responses != PAD_ID, 0.0).tolist()}

    def _note(self, states: torch.Tensor, prompt_length: int) -> None:
        """The reward model reads each response of an update once, with its prompt."""
        self.count += states.shape[0] * (states.shape[1] - prompt_length)


def _scorer(folder: str) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
