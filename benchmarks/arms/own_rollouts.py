"""Ours: iterations of PPO and GRPO."""

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.arms.own_separate_critic import SeparateCriticTrainer
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import (
    KL_COEFFICIENT,
    LORA_ALPHA,
    LORA_RANK,
    PAD_ID,
    POLICY_LEARNING_RATE,
    even_share,
    prompts,
    text,
)
from rlcore import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RewardModel, RewardModelConfig
from rlcore.batches import join
from rlcore.configs import LoraConfig
from rlcore.grpo.update import Experience, policy_losses
from rlcore.models import language_model_of, sampled_logprobs
from rlcore.rollout import RolloutTrainer


class Iterations:
    """One iteration of a trainer that samples, with the counts of the last one."""

    def __init__(self, trainer: RolloutTrainer[Any], asked: list[list[int]]) -> None:
        self.trainer, self.prompts = trainer, [text(row) for row in asked]
        self.metrics: Mapping[str, float] = {}
        trainer.on_metrics = self._note

    def unit(self) -> Work:
        """Sample, judge, learn."""
        self.trainer.train(self.prompts, self.trainer.iteration + 1)
        return Work(
            count=round(self.metrics["response/length_mean"] * self.trainer.config.batch_size),
            steps=int(self.metrics["optim/step_count"]),
            loss=self.metrics["policy/loss"],
            parts={name: value for name, value in self.metrics.items() if name.startswith("time/")},
        )

    def _note(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics = metrics


class PPO(Iterations):
    """PPOTrainer: a critic on the policy's states and a reward function, or with `separate` as the peer has it.

    Args:
        model: folder.
        rows, prompt_length, vocabulary, new_tokens: of a rollout.
        mini_batch_size, accumulation, epochs: of the update.
        separate: a critic with a trunk of its own, and a reward model.
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
        accumulation: int,
        epochs: int,
        separate: bool = False,
        lora: bool = False,
    ) -> None:
        config = PPOConfig(
            model_name=model,
            batch_size=rows,
            mini_batch_size=mini_batch_size,
            gradient_accumulation_steps=accumulation,
            ppo_epochs=epochs,
            max_new_tokens=new_tokens,
            temperature=1.0,
            top_p=1.0,
            learning_rate=POLICY_LEARNING_RATE,
            kl_penalty_coef=KL_COEFFICIENT,
            entropy_coef=0.0,
            lora=LoraConfig(rank=LORA_RANK, alpha=LORA_ALPHA) if lora else None,
            device="cpu",
        )
        reward: Any = _even_share
        if separate:
            reward = RewardModel(RewardModelConfig(model_name=model, dropout_prob=0.0, device="cpu"))
        trainer = (SeparateCriticTrainer if separate else PPOTrainer)(config, reward_fn=reward)
        super().__init__(trainer, prompts(rows, prompt_length, vocabulary))

    def facts(self, other: Facts | None) -> Facts:
        """What the policy says of some rows, before it has learnt."""
        rows = [] if other is None else other["input/rows"]
        return {} if other is None else {"logprobs/policy": _logprobs(self.trainer, rows)}


class GRPO(Iterations):
    """GRPOTrainer: groups of responses, one pass, no penalty.

    Args:
        model, rows, prompt_length, vocabulary, new_tokens, mini_batch_size, accumulation: see PPO.
        group_size: responses to each prompt.
    """

    def __init__(
        self,
        model: str,
        rows: int,
        prompt_length: int,
        vocabulary: int,
        new_tokens: int,
        mini_batch_size: int,
        accumulation: int,
        group_size: int,
    ) -> None:
        config = GRPOConfig(
            model_name=model,
            batch_size=rows,
            mini_batch_size=mini_batch_size,
            gradient_accumulation_steps=accumulation,
            num_generations=group_size,
            max_new_tokens=new_tokens,
            learning_rate=POLICY_LEARNING_RATE,
            kl_penalty_coef=0.0,
            device="cpu",
        )
        super().__init__(
            GRPOTrainer(config, reward_fn=_even_share), prompts(rows // group_size, prompt_length, vocabulary)
        )

    def facts(self, other: Facts | None) -> Facts:
        """The loss of a batch whose old log-probabilities and advantages the other side chose."""
        if other is None:
            return {}
        batch = other["input/batch"]
        sequences = join(batch["prompts"], batch["responses"], PAD_ID)
        mask = sequences.response_mask
        old = torch.tensor(batch["old_logprobs"])
        part = Experience(sequences, old, torch.zeros_like(old), torch.tensor(batch["advantages"]), mask)
        with torch.no_grad():
            logprobs = sampled_logprobs(language_model_of(self.trainer.model), sequences, 1.0)
        counts = part.counts(list(range(len(sequences))))
        loss, _ = policy_losses(logprobs, part, counts, self.trainer.config)
        return {"loss/first_step": loss.item()}


def _even_share(prompts: list[str], responses: list[str], metadata: object = None) -> list[float]:
    return even_share(responses)


def _logprobs(trainer: RolloutTrainer[Any], rows: list[list[list[int]]]) -> list[list[float]]:
    sequences = join([prompt for prompt, _ in rows], [response for _, response in rows], PAD_ID)
    with torch.no_grad():
        logprobs = sampled_logprobs(language_model_of(trainer.model), sequences, 1.0)
    values: list[list[float]] = logprobs.tolist()
    return values
