"""Ours: responses with log-probabilities."""

from typing import Any

from benchmarks.protocol import Facts, Work
from benchmarks.workloads import END_ID, PAD_ID, PARITY_TOKENS, even_share, prompts, text
from rlcore import PPOConfig, PPOTrainer
from rlcore.models import load_causal_lm
from rlcore.sampling import SamplingParams, generate

PARITY_ROWS = 5


class Rollout:
    """`rlcore.sampling.generate`, batch after batch.

    Args:
        model: folder.
        rows, prompt_length, vocabulary: the prompts, every other one shorter.
        batch_size: rows sampled at a time.
        new_tokens: longest response.
    """

    def __init__(
        self, model: str, rows: int, prompt_length: int, vocabulary: int, batch_size: int, new_tokens: int
    ) -> None:
        self.model = load_causal_lm(model)
        self.prompts = prompts(rows, prompt_length, vocabulary, ragged=True)
        self.batch_size, self.new_tokens, self.seed = batch_size, new_tokens, 0

    def unit(self) -> Work:
        """All prompts once."""
        count = 0
        for start in range(0, len(self.prompts), self.batch_size):
            asked = self.prompts[start : start + self.batch_size]
            samples = self._sample(asked, SamplingParams(self.new_tokens))
            count += int(samples.response_mask.sum())
        return Work(count)

    def facts(self, other: Facts | None) -> Facts:
        """Most likely tokens; and sampled ones with the log-probabilities that were noted on the way."""
        if other is not None:
            return {}
        asked = self.prompts[:PARITY_ROWS]
        greedy = self._sample(asked, SamplingParams(PARITY_TOKENS, temperature=0))
        sampled = self._sample(asked, SamplingParams(PARITY_TOKENS))
        rows = [values[mask].tolist() for values, mask in zip(sampled.logprobs, sampled.response_mask, strict=True)]
        return {
            "ids/greedy": greedy.response_lists(),
            "input/sampled": sampled.response_lists(),
            "logprobs/sampled": rows,
        }

    def _sample(self, asked: list[list[int]], params: SamplingParams) -> Any:
        self.seed += len(asked)
        seeds = range(self.seed, self.seed + len(asked))
        return generate(self.model, asked, params, seeds=seeds, end_ids=[END_ID], pad_id=PAD_ID)


class Responses:
    """`PPOTrainer.generate_responses`: texts in, texts out.

    Args:
        model: folder.
        rows, prompt_length, vocabulary, new_tokens: see Rollout.
    """

    def __init__(self, model: str, rows: int, prompt_length: int, vocabulary: int, new_tokens: int) -> None:
        config = PPOConfig(
            model_name=model, max_new_tokens=new_tokens, temperature=1.0, top_p=1.0, batch_size=rows, device="cpu"
        )
        self.trainer = PPOTrainer(config, reward_fn=lambda prompts, responses, metadata=None: even_share(responses))
        self.prompts = [text(row) for row in prompts(rows, prompt_length, vocabulary)]
        self.seed = 0

    def unit(self) -> Work:
        """A response to each prompt."""
        self.seed += 1
        responses = self.trainer.generate_responses(self.prompts, seed=self.seed)
        return Work(sum(len(response.split()) for response in responses))

    def facts(self, other: Facts | None) -> Facts:
        """Most likely words."""
        greedy = self.trainer.generate_responses(self.prompts, max_new_tokens=PARITY_TOKENS, temperature=0)
        return {"ids/greedy": [[int(word[1:]) for word in response.split()] for response in greedy]}
