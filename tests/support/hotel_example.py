"""A policy folder for examples/my_envs/hotel_env.py that can learn it in seconds: one token a word, and one a call."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore.scratch import build_model
from tests.support.ppo import SHAPE
from tests.support.tools import TOOL_TEMPLATE

VIEWS = ("sea", "garden", "street")
NUMBERS = ("11", "12", "14", "21", "22", "24", "31", "32", "34")


def call(view: str) -> str:
    """What the policy has to ask."""
    return f'<tool_call>{{"name": "find_rooms", "arguments": {{"view": "{view}"}}}}</tool_call>'


def hotel_policy(folder: Path) -> Path:
    """A random policy in a folder."""
    special = ["<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>", "<|end|>"]
    words = ["room", "costs", *(f"{view}," for view in VIEWS), *NUMBERS]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(special + words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<|end|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": special[2:6]})
    tokenizer.add_tokens([call(view) for view in VIEWS])
    tokenizer.chat_template = TOOL_TEMPLATE
    shape = SHAPE.model_copy(update={"max_positions": 256})
    build_model(shape, tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
