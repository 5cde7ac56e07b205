"""Peer: GRPOTrainer of TRL 1.16."""

from typing import Any

import datasets
import torch
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from benchmarks.arms.gate import Gate
from benchmarks.arms.trl_settings import ENDLESS, settings
from benchmarks.protocol import Facts, Work
from benchmarks.workloads import PAD_ID, POLICY_LEARNING_RATE, even_share, pairs, prompts, text


class GRPO:
    """One optimiser step: sample a batch, judge, learn; arguments as of own_rollouts.GRPO."""

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
        self.gate, self.count = Gate(), 0
        self.parity_rows = pairs(4, prompt_length, new_tokens, vocabulary)
        asked = [text(row) for row in prompts(rows // group_size, prompt_length, vocabulary)]
        self.trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=self._scored,
            args=GRPOConfig(
                **settings(
                    per_device_train_batch_size=mini_batch_size,
                    gradient_accumulation_steps=accumulation,
                    steps_per_generation=accumulation,
                    num_generations=group_size,
                    max_completion_length=new_tokens,
                    max_steps=ENDLESS,
                    learning_rate=POLICY_LEARNING_RATE,
                    model_init_kwargs={"dtype": "float32"},
                    beta=0.0,
                )
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": asked}),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[self.gate],
        )

    def unit(self) -> Work:
        """One step."""
        self.count = 0
        self.gate.step(self.trainer.train)
        return Work(self.count, steps=1)

    def facts(self, other: Facts | None) -> Facts:
        """The loss of a batch with old log-probabilities and advantages that move it, in evaluation mode."""
        prompt_rows = [prompt for prompt, _, _ in self.parity_rows]
        responses = [chosen for _, chosen, _ in self.parity_rows]
        width = max(map(len, responses))
        ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in responses])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in responses])
        prompt_ids = torch.tensor(prompt_rows)
        noise = torch.randn(ids.shape, generator=torch.Generator().manual_seed(0)) * 0.3
        old = (noise - 6.0).where(mask.bool(), 0.0)
        advantages = torch.tensor([1.5, -0.5, 0.0, -1.0])
        self.trainer.model.eval()
        with torch.no_grad():
            loss = self.trainer.compute_loss(
                self.trainer.model,
                {
                    "prompt_ids": prompt_ids,
                    "prompt_mask": torch.ones_like(prompt_ids),
                    "completion_ids": ids,
                    "completion_mask": mask,
                    "tool_mask": mask,
                    "num_items_in_batch": mask.sum(),
                    "advantages": advantages,
                    "old_per_token_logps": old,
                },
            )
        batch = {
            "prompts": prompt_rows,
            "responses": responses,
            "old_logprobs": old.tolist(),
            "advantages": advantages.tolist(),
        }
        return {"loss/first_step": float(loss), "input/batch": batch}

    def _scored(self, completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        self.count += sum(map(len, completion_ids))
        return list(even_share(completions))
