"""Peer: `generate` of transformers, with the log-probabilities of its tokens."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.protocol import Facts, Work
from benchmarks.workloads import END_ID, PAD_ID, prompts


class Rollout:
    """`generate`, batch after batch; arguments as of own_sampling.Rollout.

    Args:
        logprobs: "output_logits" keeps the logits of every step, "second_pass" reads the whole rows once more.
    """

    def __init__(
        self,
        model: str,
        rows: int,
        prompt_length: int,
        vocabulary: int,
        batch_size: int,
        new_tokens: int,
        logprobs: str = "output_logits",
    ) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.prompts = prompts(rows, prompt_length, vocabulary, ragged=True)
        self.batch_size, self.new_tokens = batch_size, new_tokens
        self.measure = {"output_logits": self._kept_logits, "second_pass": self._second_pass}[logprobs]

    def unit(self) -> Work:
        """All prompts once."""
        count = 0
        for start in range(0, len(self.prompts), self.batch_size):
            ids, mask = _left_padded(self.prompts[start : start + self.batch_size])
            response_ids, logprobs = self.measure(ids, mask)
            real = _real(response_ids)
            assert bool(logprobs[real].isfinite().all())
            count += int(real.sum())
        return Work(count)

    @torch.no_grad()
    def facts(self, other: Facts | None) -> Facts:
        """Its own most likely tokens, and what a plain forward pass says of the tokens that the other side sampled."""
        assert other is not None
        sampled, greedy = other["input/sampled"], other["ids/greedy"]
        asked = self.prompts[: len(sampled)]
        ids, mask = _left_padded(asked)
        length = max(map(len, greedy))
        mine = self._generate(ids, mask, do_sample=False, max_new_tokens=length).sequences[:, ids.shape[1] :]
        rows = []
        for prompt, response in zip(asked, sampled, strict=True):
            logits = self.model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            rows.append(logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist())
        return {
            "ids/greedy": [row[real].tolist() for row, real in zip(mine, _real(mine), strict=True)],
            "logprobs/sampled": rows,
        }

    @torch.no_grad()
    def _kept_logits(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        made = self._generate(ids, mask, do_sample=True, output_logits=True)
        response_ids = made.sequences[:, ids.shape[1] :]
        logprobs = torch.stack(made.logits, dim=1).log_softmax(dim=-1)
        return response_ids, logprobs.gather(2, response_ids[..., None])[..., 0]

    @torch.no_grad()
    def _second_pass(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        sequences = self._generate(ids, mask, do_sample=True).sequences
        response_ids = sequences[:, ids.shape[1] :]
        whole_mask = torch.cat([mask, torch.ones_like(response_ids)], dim=1)
        positions = (whole_mask.cumsum(dim=1) - 1).clamp(min=0)
        kept = response_ids.shape[1] + 1
        logits = self.model(
            input_ids=sequences, attention_mask=whole_mask, position_ids=positions, logits_to_keep=kept
        ).logits[:, :-1]
        return response_ids, logits.log_softmax(dim=-1).gather(2, response_ids[..., None])[..., 0]

    def _generate(self, ids: Tensor, mask: Tensor, **settings: Any) -> Any:
        config = GenerationConfig(
            **{"max_new_tokens": self.new_tokens, "top_k": 0, **settings},
            return_dict_in_generate=True,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
        )
        return self.model.generate(input_ids=ids, attention_mask=mask, generation_config=config)


def _left_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[PAD_ID] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def _real(response_ids: Tensor) -> Tensor:
    """Which tokens belong to the responses, the end token included."""
    ended = (response_ids == END_ID).long().cumsum(dim=1)
    return (ended - (response_ids == END_ID).long()) == 0
