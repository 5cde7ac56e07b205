"""A hotel whose desk knows which room is free: an environment of two turns, and a policy that can learn it."""

from functools import cache
from typing import Any

import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore.configs import GRPOConfig
from rlcore.grpo import GRPOTrainer
from rlcore.scratch import build_model
from tests.support.grpo import config
from tests.support.ppo import SHAPE
from tests.support.tools import TOOL_TEMPLATE, schema

CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
BROKEN_CALL = '<tool_call>{"name": "search"}</tool_call>'
ROOMS = ("1", "2", "3")


class HotelEnv:
    """Half a point for asking the desk, half for then naming the free room and no other.

    Attributes:
        scored: completions that were scored, each with its case.
    """

    def __init__(self, cases: int = 6):
        self.cases = cases
        self.scored: list[tuple[Any, int]] = []

    def build_dataset(self, tokenizer: Any) -> datasets.Dataset:
        prompts = [[{"role": "user", "content": "Book a room please"}]] * self.cases
        return datasets.Dataset.from_dict({"prompt": prompts, "case_idx": [10 + case for case in range(self.cases)]})

    def get_tools(self) -> list[dict[str, Any]]:
        return [schema("search")]

    def call_tool(self, name: str, arguments: dict[str, Any], case_idx: int) -> str:
        return f"room {free_room(case_idx)} is free"

    def score_episode(self, model: Any, tokenizer: Any, completion: Any, case_idx: int) -> float:
        self.scored.append((completion, case_idx))
        answered = any(message["content"].endswith("is free") for message in completion if message["role"] == "tool")
        named = {word for word in completion[-1]["content"].split() if word in ROOMS}
        return 0.5 * answered + 0.5 * (answered and named == {free_room(case_idx)})


def free_room(case_idx: int) -> str:
    return ROOMS[case_idx % len(ROOMS)]


@cache
def hotel_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, and one for a whole call, so that a random policy comes upon it."""
    special = ["<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>", "<|end|>"]
    words = ["Book", "a", "room", "please", "is", "free", "search:", "Error:", *ROOMS]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(special + words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<|end|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": special[2:6]})
    tokenizer.add_tokens([CALL, BROKEN_CALL])
    tokenizer.chat_template = TOOL_TEMPLATE
    return tokenizer


def hotel_config(**settings: Any) -> GRPOConfig:
    """Settings of an hotel run of a second or two."""
    return config(**{"max_turns": 2, "max_new_tokens": 10, "learning_rate": 1e-2, **settings})


def hotel_trainer(settings: GRPOConfig, environment: HotelEnv | None = None, **arguments: Any) -> GRPOTrainer:
    """A trainer of a fresh random policy in a hotel."""
    model = build_model(SHAPE, hotel_tokenizer(), seed=1)
    return GRPOTrainer(
        settings, tokenizer=hotel_tokenizer(), model=model, environment=environment or HotelEnv(), **arguments
    )
