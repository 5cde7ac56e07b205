"""`make bench-check`: how cost grows with length, batch and data, as ratios that a slip to a square law breaks.

CPU time of the fastest of several alternating runs of either size: load of the machine adds to both and cancels.
Bounds leave room for attention and caches; they catch a factor of 4 where 2 is expected, not a fifth more.
"""

import ctypes
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.models import model_folder
from benchmarks.worker import Memory
from benchmarks.workloads import END_ID, PAD_ID, columns, even_share, pairs, prompts, text
from rlcore import PPOConfig, PPOTrainer, PreferenceDataset
from rlcore.functional.advantages import gae
from rlcore.functional.logprobs import response_logprobs
from rlcore.models import load_causal_lm, load_tokenizer
from rlcore.sampling import SamplingParams, generate

RUNS = 7
M_MMAP_THRESHOLD = -3
"""Of the GNU C library's mallopt."""
VOCABULARY, SHAPE, PROMPT = 512, "a", 16


@dataclass(frozen=True)
class Law:
    """That a cost of a larger job is at most so many times that of a smaller one.

    Args:
        name: of what grows.
        most: the bound of large / small.
        measure: returns the two costs.
    """

    name: str
    most: float
    measure: Callable[[], tuple[float, float]]


def fastest(small: Callable[[], object], large: Callable[[], object]) -> tuple[float, float]:
    """Least CPU seconds of RUNS alternating runs of two jobs, both warmed up."""
    small()
    large()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS):
        for job, taken in zip((small, large), seconds, strict=True):
            started = time.process_time()
            job()
            taken.append(time.process_time() - started)
    return min(seconds[0]), min(seconds[1])


def rollout(rows: int, new_tokens: int) -> Callable[[], object]:
    """Sampling so many rows of so many tokens."""
    model = load_causal_lm(str(model_folder(SHAPE)))
    asked = prompts(rows, PROMPT, VOCABULARY)
    params = SamplingParams(new_tokens)
    return lambda: generate(model, asked, params, seeds=range(rows), end_ids=[END_ID], pad_id=PAD_ID)


def update(rows: int, new_tokens: int) -> Callable[[], object]:
    """The updates of PPO on so many rows of so many tokens, one pass in mini-batches of 8."""
    config = PPOConfig(
        model_name=str(model_folder(SHAPE)),
        batch_size=rows,
        mini_batch_size=8,
        ppo_epochs=1,
        max_new_tokens=new_tokens,
        temperature=1.0,
        top_p=1.0,
        learning_rate=1e-6,
        device="cpu",
    )
    trainer = PPOTrainer(config, reward_fn=lambda prompts, responses, metadata=None: even_share(responses))
    encoded = trainer.encode([text(row) for row in prompts(rows, PROMPT, VOCABULARY)])
    rollout = trainer.collect(encoded, range(rows), ("rollout", 0))
    return lambda: trainer.learn(rollout)


def advantages(steps: int) -> Callable[[], object]:
    """GAE over rows of so many steps."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(64, steps, generator=generator) for _ in range(2))
    mask = torch.ones_like(rewards, dtype=torch.bool)
    return lambda: [gae(rewards, values, mask, torch.zeros(64), gamma=0.99, lam=0.95) for _ in range(3)]


def preference_rows(count: int) -> Callable[[], object]:
    """Tokenising so many pairs."""
    texts = columns(pairs(count, PROMPT, 64, VOCABULARY))
    tokenizer = load_tokenizer(str(model_folder(SHAPE)))
    return lambda: PreferenceDataset(texts["prompt"], texts["chosen"], texts["rejected"], tokenizer, 128, PROMPT)


def peak_of(job: Callable[[], object]) -> float:
    """Peak resident bytes of a job that has run before, above what is there without it."""
    # Large blocks go back to the system when they are freed: what the C library would keep hides what a job needs.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    job()
    memory = Memory()
    before = memory.begin()
    job()
    return float(memory.peak() - before)


def logprob_peak(rows: int) -> float:
    """Bytes that log-probabilities without gradient need above the limit of 64 MiB, beside what was there."""
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(32, 50_000, bias=False)
    hidden = torch.randn(rows, 65, 32, generator=generator)
    ids = torch.randint(50_000, (rows, 64), generator=generator)

    def job() -> object:
        with torch.no_grad():
            return response_logprobs(hidden, head, ids, temperature=1.0, max_logit_bytes=64 * 2**20)

    return peak_of(job)


def cache_bytes(rows: int, new_tokens: int) -> float:
    """Peak of sampling beside what was there: keys and values of all rows, mostly."""
    return peak_of(rollout(rows, new_tokens))


LAWS = (
    Law("sampling, twice the tokens", 2.6, lambda: fastest(rollout(16, 32), rollout(16, 64))),
    Law("sampling, twice the rows", 2.1, lambda: fastest(rollout(16, 32), rollout(32, 32))),
    Law("update, twice the tokens", 2.8, lambda: fastest(update(16, 48), update(16, 96))),
    Law("update, twice the rows", 2.8, lambda: fastest(update(16, 48), update(32, 48))),
    Law("advantages, twice the steps", 2.5, lambda: fastest(advantages(256), advantages(512))),
    Law("preference pairs, twice as many", 2.3, lambda: fastest(preference_rows(200), preference_rows(400))),
    Law("memory of log-probs above the limit, four times the rows", 1.15, lambda: (logprob_peak(16), logprob_peak(64))),
    Law("memory of sampling, twice the rows", 2.3, lambda: (cache_bytes(128, 192), cache_bytes(256, 192))),
)


def main() -> int:
    """Print each law with what was measured; 1 where one is broken."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    broken = 0
    for law in LAWS:
        small, large = law.measure()
        # A cost of nothing was not measured.
        ratio = large / small if small > 0 else math.inf
        broken += ratio > law.most
        print(f"{law.name}: {ratio:.2f}, at most {law.most:g}{'' if ratio <= law.most else '  BROKEN'}", flush=True)
    print(f"{len(LAWS) - broken} passed, {broken} failed")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
