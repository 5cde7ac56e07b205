"""What the arms work on, the same for both sides. Standard library only, as peers read it too.

The word `w17` is token 17, so that texts and tokens are the same in every tokenizer call: equal work can be counted.
"""

import random
from dataclasses import dataclass

POLICY_LEARNING_RATE, PAIR_LEARNING_RATE = 1e-5, 1e-6
KL_COEFFICIENT, GAMMA, LAM = 0.05, 0.99, 0.95
LORA_RANK, LORA_ALPHA = 16, 32
PARITY_TOKENS = 12
"""Most likely tokens by which two samplers are compared."""
PAD_ID, END_ID, UNKNOWN_ID, FIRST_WORD = 0, 1, 2, 3


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    vocabulary: int
    positions: int = 1024


SHAPES = {
    "a": Shape(128, 4, 4, 2, 256, 512),
    "135m": Shape(576, 30, 9, 3, 1536, 49152),
    "smoke": Shape(32, 2, 2, 1, 64, 64),
}
"""`a` is model (a) of the performance notes, 0.66 M parameters; `135m` has the shape of SmolLM2-135M."""

Pair = tuple[list[int], list[int], list[int]]
"""Prompt, chosen, rejected; the responses without an end token."""


def prompts(count: int, length: int, vocabulary: int, *, ragged: bool = False, seed: int = 0) -> list[list[int]]:
    """Token rows without special tokens; with `ragged` every other one is shorter, by up to three quarters."""
    draw = random.Random(seed)
    lengths = [draw.randint(max(1, length // 4), length - 1) if ragged and row % 2 else length for row in range(count)]
    return [_words(draw, each, vocabulary) for each in lengths]


def pairs(count: int, prompt_length: int, response_length: int, vocabulary: int, *, seed: int = 0) -> list[Pair]:
    """Preference pairs; responses have a quarter of response_length to all of it."""
    draw = random.Random(seed)

    def response() -> list[int]:
        return _words(draw, draw.randint(max(1, response_length // 4), response_length), vocabulary)

    return [(_words(draw, prompt_length, vocabulary), response(), response()) for _ in range(count)]


def text(ids: list[int]) -> str:
    """The words of some tokens."""
    return " ".join(f"w{token}" for token in ids)


def columns(rows: list[Pair]) -> dict[str, list[str]]:
    """Pairs as texts; a response begins with the blank that keeps it apart from its prompt."""
    return {
        "prompt": [text(prompt) for prompt, _, _ in rows],
        "chosen": [f" {text(chosen)}" for _, chosen, _ in rows],
        "rejected": [f" {text(rejected)}" for _, _, rejected in rows],
    }


def even_share(texts: list[str]) -> list[float]:
    """A reward function that costs nothing: the share of words with an even number."""
    return [sum(word[-1] in "02468" for word in words) / max(1, len(words)) for words in map(str.split, texts)]


def _words(draw: random.Random, count: int, vocabulary: int) -> list[int]:
    return [draw.randrange(FIRST_WORD, vocabulary) for _ in range(count)]
